"""The targets that a threshold can be calibrated for, and how those without a guarantee are reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from offramp.errors import BadOption, NoSafeThreshold
from offramp.guarantees.guarantee import Guarantee, require
from offramp.measuring.curve import Curve, Point, Sweep
from offramp.measuring.sweep import sweep
from offramp.policy import Policy
from offramp.trace import Trace

COSTS = ("layers", "macs")
POINTS = 400
"""Thresholds tried where no statistical test limits them."""


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
        return 0 if self.fit_on is None else self.fit_on.whole_examples


def reach(candidates: Sequence[Candidate], target: MaxLoss | MinSpeedup | Budget) -> list[Candidate]:
    """The policies that reach a target without a guarantee, the best first.

    All rules are compared on the same examples, those that none of them was fitted on.
    """
    trace = min((candidate.trace for candidate in candidates), key=len)
    curves = sweep(trace, [candidate.policy for candidate in candidates], points=POINTS)
    chosen = within_loss(curves, target) if isinstance(target, MaxLoss) else within_cost(curves, target)
    return [
        Candidate(curve.policy(point), trace, mean_layer=point.cost.mean_layer, score=curves.score(point))
        for curve, point in chosen
    ]


def within_loss(curves: Sweep, target: MaxLoss) -> list[tuple[Curve, Point]]:
    """For each rule the point with the fewest layers within the allowed loss, the fewest first."""
    metric = target.metric or curves.headline
    if metric not in curves.metrics:
        raise BadOption(f"the trace is not scored by {metric!r}; it has {', '.join(curves.metrics)}")

    def lost(point: Point) -> float:
        return 100 * (curves.full.scores[metric] - point.scores[metric])

    points = [(curve, point) for curve in curves.curves.values() for point in curve.points]
    saving = [(curve, point) for curve, point in points if point.cost.mean_layer < point.cost.depth]
    if not saving:
        raise NoSafeThreshold(NO_EARLY_EXIT)
    allowed = [(curve, point) for curve, point in saving if lost(point) <= target.points + 1e-9]
    if not allowed:
        least = min(lost(point) for _, point in saving)
        unit = "point" if target.points == 1 else "points"
        raise NoSafeThreshold(
            f"no threshold saves a layer and loses at most {target.points:g} {unit} of {metric}: "
            f"the smallest loss is {least:.2f}. Allow that, or train the exits further."
        )
    allowed.sort(key=lambda item: (item[1].cost.mean_layer, lost(item[1])))
    return first_of_each(allowed)


def within_cost(curves: Sweep, target: MinSpeedup | Budget) -> list[tuple[Curve, Point]]:
    """For each rule the point with the best score within the allowed cost, the best first."""

    def cost(point: Point) -> float:
        return expense(point, target.cost)

    full = cost(curves.full)
    most = target.mean if isinstance(target, Budget) else full / target.ratio
    points = [(curve, point) for curve in curves.curves.values() for point in curve.points]
    allowed = [(curve, point) for curve, point in points if cost(point) <= most * (1 + 1e-9)]
    if not allowed:
        least = min(cost(point) for _, point in points)
        wanted = (
            f"a mean of {target.mean:g} {target.cost}; the least is {least:.4g}"
            if isinstance(target, Budget)
            else f"{target.ratio:g} times fewer {target.cost}; the most is {full / max(least, 1e-9):.2f} times"
        )
        raise NoSafeThreshold(f"no threshold reaches {wanted}. Ask for less, or train earlier exits.")
    allowed.sort(key=lambda item: (-curves.score(item[1]), cost(item[1])))
    return first_of_each(allowed)


def first_of_each(points: Sequence[tuple[Curve, Point]]) -> list[tuple[Curve, Point]]:
    """The first point of each rule."""
    firsts: dict[str, tuple[Curve, Point]] = {}
    for curve, point in points:
        firsts.setdefault(curve.rule, (curve, point))
    return [*firsts.values()]


def expense(point: Point, unit: str) -> float:
    if unit == "layers":
        return point.cost.mean_layer
    if point.cost.macs is None:
        raise BadOption("MACs are unknown: the trace has no model shape. Count layers, or collect it again.")
    return point.cost.macs
