"""The targets that a threshold can be calibrated for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from offramp.errors import BadOption
from offramp.guarantees.certificate import RISKS
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
    """A mean cost over a set of examples, with a separate threshold at every exit.

    *Reference*: budgeted batch classification of MSDNet, Huang et al. 2018, arXiv:1703.09844.
    *Relation*: `MinSpeedup` finds one threshold for all exits.
    """

    mean: float
    cost: str = "layers"
    """What is counted: "layers" or "macs"."""

    def __post_init__(self) -> None:
        require(self.mean > 0, f"mean={self.mean}: expected more than 0")
        require(self.cost in COSTS, f"cost={self.cost!r}: choose one of {', '.join(COSTS)}")


@dataclass(frozen=True)
class Guarantee:
    """Fewest layers such that a risk is at most epsilon, with probability at least 1 - delta.

    The probability is over the draw of the calibration examples. The risk is the mean of a loss over examples from
    the same distribution: for "disagreement", that the prediction differs from full depth (no labels needed); for
    "accuracy", that leaving early turns a right prediction into a wrong one. Accuracy drops by at most that.
    """

    epsilon: float | Mapping[str, float]
    """One bound for all examples; or one per class name, each of which then holds within that class: the examples
    that full depth predicts as it, or for "accuracy" those labelled with it. This protects rare classes, and each
    class needs enough calibration examples."""
    delta: float = 0.05
    risk: str = "disagreement"
    """ "disagreement" or "accuracy"."""
    tolerance: float | None = None
    """In regression: numbers no further apart than this count as equal."""

    def __post_init__(self) -> None:
        bounds = self.epsilon.values() if isinstance(self.epsilon, Mapping) else [self.epsilon]
        possible = bool(bounds) and all(0 < bound < 1 for bound in bounds)
        require(possible, f"epsilon={self.epsilon}: expected a fraction between 0 and 1")
        require(0 < self.delta < 1, f"delta={self.delta}: expected a probability between 0 and 1")
        require(self.risk in RISKS, f"risk={self.risk!r}: choose one of {', '.join(RISKS)}")
        near = self.tolerance is None or 0 <= self.tolerance < float("inf")
        require(near, f"tolerance={self.tolerance}: expected a distance of 0 or more")


Target: TypeAlias = MaxLoss | MinSpeedup | Budget | Guarantee


def require(holds: bool, message: str) -> None:
    if not holds:
        raise BadOption(message)


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
