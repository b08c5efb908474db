"""Score against cost for every rule and threshold, from one trace."""

from offramp.curves.curve import Curve, Point, Sweep, elue_score
from offramp.curves.sweep import sweep

__all__ = ["Curve", "Point", "Sweep", "elue_score", "sweep"]
