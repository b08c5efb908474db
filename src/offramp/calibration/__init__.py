"""A threshold for a target: a maximum loss, a speed-up, a budget, or a bound with a known confidence."""

from offramp.calibration.search import Calibration, calibrate, find_policy
from offramp.calibration.targets import Budget, Guarantee, MaxLoss, MinSpeedup
from offramp.calibration.temperatures import Temperatures, fit_temperatures

__all__ = [
    "Budget",
    "Calibration",
    "Guarantee",
    "MaxLoss",
    "MinSpeedup",
    "Temperatures",
    "calibrate",
    "find_policy",
    "fit_temperatures",
]
