"""A rule before and after its threshold is chosen."""

from dataclasses import dataclass

from offramp.policy import Policy
from offramp.trace import Trace

NO_EARLY_EXIT = "no threshold lets any example leave early on this trace; use another rule."


@dataclass(frozen=True)
class Candidate:
    """A rule, and the examples that its threshold may be chosen on: none of those that it was fitted on."""

    policy: Policy
    trace: Trace
    fitted_on: int = 0
    """The number of examples that the rule was fitted on."""


@dataclass(frozen=True)
class Found:
    """The best policy of one rule that reaches the target."""

    policy: Policy
    trace: Trace
    """The examples that its threshold was chosen on."""
    mean_layer: float
    score: float | None = None
    """The headline score, where the target is a cost."""
