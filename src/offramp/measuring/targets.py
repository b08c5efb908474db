"""The targets that a threshold can be calibrated for."""

from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from offramp.guarantees.certificate import Guarantee, require
from offramp.policy import Policy
from offramp.trace import Trace

COSTS = ("layers", "macs")


@dataclass(frozen=True)
class MaxLoss:
    """The fewest layers that lose at most this many points on this data; no guarantee for other data."""

    points: float
    """Hundredths of the score: 0.5 lets an accuracy of 0.914 fall to 0.909."""
    metric: str | None = None
    """By default the headline metric."""

    def __post_init__(self) -> None:
        require(self.points >= 0, f"points={self.points}: expected 0 or more")


@dataclass(frozen=True)
class MinSpeedup:
    """The best score at a cost at least this many times lower than full depth."""

    ratio: float
    cost: str = "macs"
    """What is counted: "macs" or "layers", of which an exit before the first layer has none."""

    def __post_init__(self) -> None:
        require(self.ratio >= 1, f"ratio={self.ratio}: expected 1 (full depth) or more")
        require(self.cost in COSTS, f"cost={self.cost!r}: choose one of {', '.join(COSTS)}")


@dataclass(frozen=True)
class Budget:
    """The best score at a mean cost of at most this per example.

    *Reference*: budgeted batch classification of MSDNet, Huang et al. 2018, arXiv:1703.09844.
    """

    mean: float
    cost: str = "layers"
    """What is counted: "layers" or "macs"."""

    def __post_init__(self) -> None:
        require(self.mean > 0, f"mean={self.mean}: expected more than 0")
        require(self.cost in COSTS, f"cost={self.cost!r}: choose one of {', '.join(COSTS)}")


Target: TypeAlias = MaxLoss | MinSpeedup | Budget | Guarantee


NO_EARLY_EXIT = "no threshold lets any example exit early on this trace; use another rule."


@dataclass(frozen=True)
class Candidate:
    """A rule, and the examples that its threshold may be chosen on: none of those that it was fitted on."""

    policy: Policy
    trace: Trace
    fit_on: Trace | None = None
    """The examples that the rule was fitted on, or that policies with a threshold for each exit are found on."""
    mean_layer: float = inf
    """On these examples, once the policy has its threshold."""
    score: float = 0.0
    """The headline score on them, where the target is a cost."""

    @property
    def fitted_on(self) -> int:
        return 0 if self.fit_on is None else len(self.fit_on)
