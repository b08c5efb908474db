"""The result of a sweep: points, curves, the Pareto front, and summary scores; and the sweeps of several models side
by side, in which traces of one model that differ in their seed are averaged.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import BadOption
from offramp.measuring.cost import Cost
from offramp.policy import Policy
from offramp.policy.text import rule_in_text
from offramp.problems import Array

GRID = 50
"""Points of a mean curve whose traces have different thresholds."""


@dataclass(frozen=True)
class Point:
    """Score and cost of one rule at one threshold."""

    threshold: float | None
    """In the rule's own units; None for a rule that takes none."""
    scores: Mapping[str, float]
    """By metric, as fractions; `agreement` is the share of examples that get the reference's prediction."""
    cost: Cost
    exits: tuple[int, ...]
    """How many examples exit at each layer."""
    interval: tuple[float, float] | None = None
    """The 95% bootstrap interval of the headline score."""


@dataclass(frozen=True)
class Curve:
    """One rule at many thresholds, cheapest point first."""

    rule: str
    points: tuple[Point, ...]
    fitted: Policy | None = None
    """For a rule that learns: fitted to the whole trace. The points come from rules fitted to its halves."""

    @property
    def attainable(self) -> bool:
        """Whether a live system could follow it: its rule does not read the labels."""
        return not needs_labels(self.rule)

    def policy(self, point: Point) -> Policy:
        """The policy that runs at this point."""
        policy = parse_rule(self.rule).with_fit_of(self.fitted)
        return policy if point.threshold is None else replace(policy, threshold=point.threshold)


@dataclass(frozen=True)
class Sweep:
    """Every rule at every threshold over one trace."""

    curves: Mapping[str, Curve]
    """By the text of the rule."""
    per_exit: tuple[Point, ...]
    """Every example exits here; the last one is full depth."""
    layers: tuple[int, ...]
    metrics: tuple[str, ...]
    """The first is the headline, by which points are compared."""
    examples: int
    not_finite: int = 0
    """Examples with a NaN or infinite logit, which do not stop at the exit that has it."""
    data: str = ""
    fingerprint: str = ""

    @property
    def headline(self) -> str:
        return self.metrics[0]

    @property
    def full(self) -> Point:
        return self.per_exit[-1]

    def score(self, point: Point) -> float:
        """The headline score of a point."""
        return point.scores[self.headline]

    def front(self) -> list[tuple[str, Point]]:
        """The Pareto front: rule and point wherever no other point has a better score and fewer mean layers."""
        curves = [curve for curve in self.curves.values() if curve.attainable]
        points = [(curve.rule, point) for curve in curves for point in curve.points]
        points.sort(key=lambda item: (item[1].cost.mean_layer, -self.score(item[1])))
        best, front = -np.inf, []
        for rule, point in points:
            if self.score(point) > best:
                best = self.score(point)
                front.append((rule, point))
        return front

    def area(self, rule: str) -> float:
        """Mean headline score of a rule over all budgets, from the first exit to full depth.

        Linear between two points, because a system can choose between them at random.
        """
        points = [self.per_exit[0], *self.curves[rule].points, self.full]
        spent = np.array([point.cost.executed_fraction for point in points])
        score = np.array([self.score(point) for point in points])
        order = np.lexsort((score, spent))
        width = spent.max() - spent.min()
        return float(np.trapezoid(score[order], spent[order]) / width) if width else float(score.max())

    def elue(self, rule: str, reference: "Sweep | ArrayLike") -> float:
        """The ELUE score of a rule against the exits of another sweep, or against rows of (FLOPs, per cent)."""
        if isinstance(reference, Sweep):
            reference = reference.performance(reference.per_exit)
        return elue_score(self.performance(self.curves[rule].points), reference)

    def performance(self, points: Iterable[Point]) -> Array:
        """(points, 2) mean FLOPs and headline score in per cent, as ELUE defines it."""
        rows = [(point.cost.flops, 100 * self.score(point)) for point in points]
        if any(flops is None for flops, _ in rows):
            raise BadOption(
                "FLOPs are unknown because the trace has no shape; collect it again from the model"
            )
        return np.array(rows)


def parse_rule(rule: str | Policy) -> Policy:
    """The policy of a rule, given as a policy or its text, in which the threshold may be left out; with threshold 0.

    >>> str(parse_rule("entropy")), str(parse_rule("patience,tolerance=0.1")), str(parse_rule("patience:3"))
    ('entropy:0', 'patience:0,tolerance=0.1', 'patience:0')
    """
    if isinstance(rule, str):
        name, comma, options = rule.partition(",")
        kind = rule_in_text(rule)
        swept = kind is not None and kind.takes_threshold and ":" not in name
        rule = Policy.parse(f"{name}:0{comma}{options}" if swept else rule)
    return replace(rule, threshold=0.0, certificate=None)


def needs_labels(rule: str | Policy) -> bool:
    """Whether a rule reads the labels, as the oracle does."""
    kind = rule_in_text(str(rule))
    return kind is not None and kind.needs_labels


def elue_score(points: ArrayLike | Iterable[tuple[float, float]], reference: ArrayLike) -> float:
    """The mean height of points above a reference curve; both are rows of (FLOPs, performance).

    *Reference*: Liu et al. 2022, arXiv:2110.07038. ELUE's reference is ElasticBERT-base at each layer. The
    reference is linear between its points and constant beyond its ends.

    *Example*
    >>> elue_score([(1500, 83), (2500, 85)], reference=[(1000, 80), (2000, 84), (3000, 86)])
    0.5
    """
    flops, performance = np.asarray(points, np.float64).T
    spent, level = np.asarray(sorted(np.asarray(reference, np.float64).tolist())).T
    return float(np.mean(performance - np.interp(flops, spent, level)))


@dataclass(frozen=True)
class Spread:
    """A number over several traces."""

    mean: float
    deviation: float
    """The standard deviation, with n - 1; 0 for one trace."""


@dataclass(frozen=True)
class MeanCurve:
    """One rule of one model, over its traces."""

    model: str
    rule: str
    traces: int
    points: tuple[tuple[float, Spread], ...]
    """Mean layers and the headline score, cheapest first."""
    full: Spread
    """The headline score of full depth."""
    area: Spread


def compare(sweeps: Mapping[str, Sweep]) -> tuple[MeanCurve, ...]:
    """Every rule of every model, given the sweeps by name; none if there is one sweep, or if the data differ.

    Names that differ only in an ending such as -seed1 are one model.
    """
    data = {(sweep.data, sweep.examples, sweep.metrics) for sweep in sweeps.values()}
    if len(sweeps) < 2 or len(data) > 1:
        return ()
    models: dict[str, list[Sweep]] = {}
    for name, sweep in sweeps.items():
        models.setdefault(model_name(name), []).append(sweep)
    return tuple(
        MeanCurve(
            model,
            rule,
            len(seeds),
            mean_points(rule, seeds),
            full=spread([sweep.score(sweep.full) for sweep in seeds]),
            area=spread([sweep.area(rule) for sweep in seeds]),
        )
        for model, seeds in models.items()
        for rule in seeds[0].curves
        if all(rule in sweep.curves for sweep in seeds)
    )


def model_name(name: str) -> str:
    """The name without its seed.

    >>> model_name("pabee-seed12"), model_name("runs/pabee_seed=3.trace"), model_name("checkpoint-500")
    ('pabee', 'runs/pabee', 'checkpoint-500')
    """
    return re.sub(r"[-_. ]?seed[-_=]?\d+(\.trace)?$", "", name) or name


def mean_points(rule: str, seeds: Sequence[Sweep]) -> tuple[tuple[float, Spread], ...]:
    """Means at each threshold, if all sweeps have the same thresholds, else at each number of layers.

    Linear between two points, because a system can choose between them at random.
    """
    curves = [sweep.curves[rule].points for sweep in seeds]
    layers = [np.array([point.cost.mean_layer for point in points]) for points in curves]
    scores = [np.array([*map(sweep.score, points)]) for sweep, points in zip(seeds, curves, strict=True)]
    if len({tuple(point.threshold for point in points) for points in curves}) > 1:
        grid = np.linspace(max(map(np.min, layers)), min(map(np.max, layers)), GRID)
        orders = [np.argsort(values, kind="stable") for values in layers]
        scores = [
            np.interp(grid, at[order], height[order])
            for order, at, height in zip(orders, layers, scores, strict=True)
        ]
        layers = [grid]
    return tuple(zip(np.mean(layers, 0).tolist(), map(spread, np.transpose(scores)), strict=True))


def spread(values: Sequence[float] | Array) -> Spread:
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
