"""Cost and score of a rule at every threshold, and a threshold that reaches a target; all from a trace."""

from offramp.guarantees import Guarantee
from offramp.measuring.calibrate import Calibration, calibrate
from offramp.measuring.curve import Curve, Point, Sweep, elue_score
from offramp.measuring.sweep import sweep
from offramp.measuring.targets import Budget, MaxLoss, MinSpeedup

__all__ = [
    "Budget",
    "Calibration",
    "Curve",
    "Guarantee",
    "MaxLoss",
    "MinSpeedup",
    "Point",
    "Sweep",
    "calibrate",
    "elue_score",
    "sweep",
]
