"""The logits of every exit for every example: the one record between training and measuring.

Rules, curves, calibration and reports work on a trace alone, with no model and no torch.
"""

from offramp.trace.collecting import collect
from offramp.trace.record import Trace

__all__ = ["Trace", "collect"]
