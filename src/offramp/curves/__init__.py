"""Trace x rules x thresholds -> curves of score against cost."""

from offramp.curves.curve import Curve, Point, Sweep, elue_score
from offramp.curves.sweep import sweep

__all__ = ["Curve", "Point", "Sweep", "elue_score", "sweep"]
