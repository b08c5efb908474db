"""A threshold for a target: a maximum loss, a speed-up, a budget, or a bound with a known confidence."""

from offramp.calibration.search import calibrate
from offramp.calibration.targets import Budget, Guarantee, MaxLoss, MinSpeedup
from offramp.calibration.temperatures import Temperatures, fit_temperatures

__all__ = ["Budget", "Guarantee", "MaxLoss", "MinSpeedup", "Temperatures", "calibrate", "fit_temperatures"]
