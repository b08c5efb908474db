"""What a sweep gives: points, curves, the front of the best, and the figures that sum a curve up."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offramp.cost import Cost
from offramp.criteria import CRITERIA
from offramp.errors import BadOption
from offramp.policy import Policy

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Point:
    """One threshold of one rule: how good the answers are and what they cost."""

    threshold: float | None
    """In the rule's own units; None for a rule that takes none."""
    scores: Mapping[str, float]
    """By metric, from 0 to 1; `agreement` is the share of examples that get the full-depth answer."""
    cost: Cost
    exits: tuple[int, ...]
    """How many examples leave at each exit."""
    interval: tuple[float, float] | None = None
    """Where 95 of 100 bootstrap resamples put the headline score."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        interval = fields["interval"] and tuple(fields["interval"])
        return cls(
            **{
                **fields,
                "cost": Cost(**fields["cost"]),
                "exits": tuple(fields["exits"]),
                "interval": interval,
            }
        )


@dataclass(frozen=True)
class Curve:
    """One rule at many thresholds, cheapest point first."""

    rule: str
    headline: str
    """The metric that the curve is judged by."""
    points: tuple[Point, ...]

    @property
    def attainable(self) -> bool:
        """Whether a live system could follow it: the oracle looks at the labels."""
        return not self.rule.startswith("oracle")

    def score(self, point: Point) -> float:
        return point.scores[self.headline]

    def policy(self, point: Point) -> Policy:
        """The policy that runs at this point."""
        policy = template(self.rule)
        return policy if point.threshold is None else replace(policy, threshold=point.threshold)

    def performance(self) -> Array:
        """(points, 2) mean FLOPs and headline score in per cent, as ELUE asks for."""
        if any(point.cost.flops is None for point in self.points):
            raise BadOption("FLOPs are unknown: the trace carries no shape. Collect it again from the model.")
        return np.array([(point.cost.flops, 100 * self.score(point)) for point in self.points])

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["rule"], fields["headline"], tuple(map(Point.from_json, fields["points"])))


@dataclass(frozen=True)
class Sweep:
    """Every rule at every threshold over one trace."""

    curves: Mapping[str, Curve]
    """By rule, as it was asked for."""
    per_exit: tuple[Point, ...]
    """Everybody leaves at this exit; the last one is the full depth."""
    layers: tuple[int, ...]
    metrics: tuple[str, ...]
    """The first is the headline."""
    examples: int
    not_finite: int = 0
    """Examples with a NaN or infinite logit; they leave at no exit where they have one."""
    data: str = ""
    fingerprint: str = ""

    @property
    def headline(self) -> str:
        return self.metrics[0]

    @property
    def full(self) -> Point:
        """The whole model for everybody."""
        return self.per_exit[-1]

    def score(self, point: Point) -> float:
        """Of the headline metric."""
        return point.scores[self.headline]

    def front(self) -> list[tuple[str, Point]]:
        """The rule and point of every operating point that no other beats in both score and mean layers."""
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
        """Mean headline score of a rule over all budgets, from the first exit for all to full depth for all.

        Between two points the score is linear: a system can take either by chance and gets the mean of both.
        """
        points = [self.per_exit[0], *self.curves[rule].points, self.full]
        spent = np.array([point.cost.executed_fraction for point in points])
        score = np.array([self.score(point) for point in points])
        order = np.lexsort((score, spent))
        width = spent.max() - spent.min()
        return float(np.trapezoid(score[order], spent[order]) / width) if width else float(score.max())

    def elue(self, rule: str, reference: "Sweep | ArrayLike") -> float:
        """The ELUE score of a rule, against another model at each of its layers, or rows of (FLOPs, per cent)."""
        if isinstance(reference, Sweep):
            reference = Curve("layer", reference.headline, reference.per_exit).performance()
        return elue_score(self.curves[rule].performance(), reference)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        curves = {rule: Curve.from_json(curve) for rule, curve in fields["curves"].items()}
        per_exit = tuple(map(Point.from_json, fields["per_exit"]))
        lists = {name: tuple(fields[name]) for name in ("layers", "metrics")}
        return cls(**{**fields, **lists, "curves": curves, "per_exit": per_exit})


def template(rule: str) -> Policy:
    """The policy of a rule whose threshold is still to come: from a name alone, or the text of a policy."""
    known = CRITERIA.get(rule)
    policy = Policy(known()) if known and rule != "oracle" else Policy.parse(rule)
    if policy.class_thresholds:
        raise BadOption(f"{rule} has thresholds by class, and a sweep moves one for all; leave class.* out")
    return replace(policy, threshold=0.0)


def elue_score(points: ArrayLike | Iterable[tuple[float, float]], reference: ArrayLike) -> float:
    """How far the points lie above a reference curve, on average; both as rows of (FLOPs, performance).

    *Reference*: Liu et al. 2022, arXiv:2110.07038. ELUE's reference is ElasticBERT-base at each layer.
    Between its points the reference is linear; beyond its ends it keeps the performance of the end.

    *Example*
    >>> elue_score([(1500, 83), (2500, 85)], reference=[(1000, 80), (2000, 84), (3000, 86)])
    0.5
    """
    flops, performance = np.asarray(points, np.float64).T
    known, level = np.asarray(sorted(np.asarray(reference, np.float64).tolist())).T
    return float(np.mean(performance - np.interp(flops, known, level)))
