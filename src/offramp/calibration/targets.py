"""What a person can ask a threshold for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from offramp.errors import BadOption

COSTS = ("layers", "macs")
RISKS = ("disagreement", "accuracy")


@dataclass(frozen=True)
class MaxLoss:
    """Fewest layers, at a loss of at most so many points on this data; no promise for other data."""

    points: float
    """Hundredths of the score: 0.5 lets an accuracy of 0.914 fall to 0.909."""
    metric: str | None = None
    """The headline metric unless named."""

    def __post_init__(self) -> None:
        require(self.points >= 0, f"points={self.points}: a loss is 0 or more")


@dataclass(frozen=True)
class MinSpeedup:
    """The best score at a cost at least so many times lower than full depth."""

    ratio: float
    of: str = "layers"
    """What is counted: "layers" or "macs"."""

    def __post_init__(self) -> None:
        require(self.ratio >= 1, f"ratio={self.ratio}: full depth is 1, twice as cheap is 2")
        require(self.of in COSTS, f"of={self.of!r}: choose one of {', '.join(COSTS)}")


@dataclass(frozen=True)
class Budget:
    """A mean cost over a set of examples, spent by a threshold of its own at every exit.

    *Reference*: budgeted batch classification of MSDNet, Huang et al. 2018, arXiv:1703.09844.
    *Relation*: `MinSpeedup` finds one threshold for all exits.
    """

    mean: float
    of: str = "layers"
    """What is counted: "layers" or "macs"."""

    def __post_init__(self) -> None:
        require(self.mean > 0, f"mean={self.mean}: a budget is more than 0")
        require(self.of in COSTS, f"of={self.of!r}: choose one of {', '.join(COSTS)}")


@dataclass(frozen=True)
class Guarantee:
    """Fewest layers such that a risk is at most epsilon, with probability at least 1 - delta.

    The probability is over the draw of the calibration examples. The risk is the mean, over examples drawn like
    them, of a loss: for "disagreement", that the answer is not that of full depth (no labels needed); for
    "accuracy", that leaving early turns a right answer into a wrong one. Accuracy falls by at most that.
    """

    epsilon: float | Mapping[str, float]
    """One bound for all; or one for every class, by name, each of which then holds for the examples of that class
    by itself: those that full depth answers with it, or for "accuracy" those that have it as their label. A rare
    class is protected this way, and needs as many calibration examples of its own."""
    delta: float = 0.05
    of: str = "disagreement"
    """ "disagreement" or "accuracy"."""
    tolerance: float | None = None
    """In regression: how far two numbers may differ and still be the same answer."""

    def __post_init__(self) -> None:
        bounds = self.epsilon.values() if isinstance(self.epsilon, Mapping) else [self.epsilon]
        possible = bool(bounds) and all(0 < bound < 1 for bound in bounds)
        require(possible, f"epsilon={self.epsilon}: a share between 0 and 1 is needed")
        require(0 < self.delta < 1, f"delta={self.delta}: a probability between 0 and 1 is needed")
        require(self.of in RISKS, f"of={self.of!r}: choose one of {', '.join(RISKS)}")
        near = self.tolerance is None or 0 <= self.tolerance < float("inf")
        require(near, f"tolerance={self.tolerance}: a distance of 0 or more is needed")


Target: TypeAlias = MaxLoss | MinSpeedup | Budget | Guarantee


def require(holds: bool, message: str) -> None:
    if not holds:
        raise BadOption(message)
