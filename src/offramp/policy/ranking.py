"""RankRule: which documents of a list need more depth to find its top k. A policy decides for single examples.

After each exit every document of a query has an interval for its score at full depth. A document is dropped when k
others are certain to be better, and one that is certain to be among the best k stops too, unless their exact order is
asked for. Live and offline decisions run the same code: the engine calls `RankDecider.step` as logits appear,
`Ranking.decide` calls it over a whole array.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from offramp.errors import BadPolicy, Incompatible, count
from offramp.policy.certificate import Certificate
from offramp.policy.policy import Decision
from offramp.problems import SINGLE_LABEL, Array


def relevance(logits: Array) -> Array:
    """(...) the logit of a document being relevant, from logits (..., outputs): the only output, or the second of two
    classes against the first.

    >>> relevance(np.array([[0.5, 2.0]])), relevance(np.array([[3.0]]))
    (array([1.5]), array([3.]))
    """
    single: Array = logits[..., -1]
    return single if logits.shape[-1] == 1 else single - logits[..., 0]


def check_reranker(labels: Sequence[str], problem_type: str) -> None:
    """Refuse a model whose outputs are not the relevance of a document."""
    if not (len(labels) == 1 or (len(labels) == 2 and problem_type == SINGLE_LABEL)):
        raise Incompatible(
            f"the model has {len(labels)} labels; reranking needs one output, or two classes of which one is right."
        )


@dataclass(frozen=True)
class RankRule:
    """Estimates of the score at full depth from that of each exit, and how sure they must be.

    The score of a document at an exit is its `relevance`. The estimate is `slope * score + intercept`, and its
    interval reaches `threshold * spread` to both sides.
    """

    top_k: int
    """The k that it was calibrated for."""
    threshold: float
    """Infinity for full depth."""
    slopes: tuple[float, ...]
    """One per exit; 1 at the last."""
    intercepts: tuple[float, ...]
    spreads: tuple[float, ...]
    """The standard deviation of the estimate's error; 0 at the last exit."""
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        for name in ("slopes", "intercepts", "spreads"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        numbers = [*self.slopes, *self.intercepts, *self.spreads]
        if not len(self.slopes) == len(self.intercepts) == len(self.spreads) > 0:
            raise BadPolicy("a rank rule needs a slope, an intercept and a spread for each exit.")
        if not np.isfinite(numbers).all() or min(self.spreads) < 0:
            raise BadPolicy("the numbers of a rank rule must be finite, and its spreads 0 or more.")
        if type(self.top_k) is not int or self.top_k < 1 or not self.threshold >= 0:
            raise BadPolicy(
                f"a rank rule needs a top_k of 1 or more and a threshold of 0 or more, not {self.top_k!r} and "
                f"{self.threshold!r}."
            )
        if (self.slopes[-1], self.intercepts[-1], self.spreads[-1]) != (1, 0, 0):
            raise BadPolicy(
                "the last exit of a rank rule gives the score itself: slope 1, intercept and spread 0."
            )

    @classmethod
    def full_depth(cls, exits: int, top_k: int = 10) -> Self:
        """Runs every document to the last exit."""
        last = (*[0.0] * (exits - 1), 1.0)
        return cls(top_k, np.inf, last, [0.0] * exits, [0.0] * exits)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """The text form; the fitted numbers are not part of it.

        >>> str(RankRule(10, 2.5, (0.8, 1), (0.1, 0), (0.5, 0)))
        'rank:2.5,top_k=10'
        """
        return f"rank:{self.threshold:g},top_k={self.top_k}"

    def estimate(self, exits: Any, scores: Array) -> Array:
        """The score at full depth, from those at these exits."""
        return np.asarray(np.asarray(self.slopes)[exits] * scores + np.asarray(self.intercepts)[exits])

    def margin(self, exit: int) -> float:
        return np.inf if np.isinf(self.threshold) else self.threshold * self.spreads[exit]

    def check(self, layers: Sequence[int], labels: Sequence[str], problem_type: str) -> None:
        """Raise `Incompatible` if this rule cannot run on a model with these exits and labels."""
        check_reranker(labels, problem_type)
        if len(self.slopes) != len(layers):
            raise Incompatible(
                f"the rank rule is for {count(len(self.slopes), 'exit')}, but the model has {len(layers)}."
            )

    def to_json(self) -> dict[str, Any]:
        proof = None if self.certificate is None else self.certificate.to_json()
        return asdict(self) | {"certificate": proof}

    @classmethod
    def from_json(cls, record: Any) -> Self:
        """The rule that `to_json` wrote. Unknown fields are refused: a newer version may decide by them."""
        known = {field.name for field in fields(cls)}
        if not isinstance(record, Mapping) or record.keys() - known:
            raise BadPolicy("the rank rule has unknown fields or is not an object; calibrate again.")
        proof = record.get("certificate")
        try:
            return cls(**{**record, "certificate": None if proof is None else Certificate.from_json(proof)})
        except (TypeError, ValueError) as error:
            raise BadPolicy(f"the rank rule is incomplete ({error}); calibrate again.") from error


class Settled(NamedTuple):
    """(lists, documents) what needs no more depth to know the top k."""

    dropped: Array
    certain: Array


def settle(lower: Array, upper: Array, top_k: Array) -> Settled:
    """The documents that cannot be among the best k of their list any more, and those that are certain to be.

    Lower and upper bounds of the scores are (lists, documents), with -infinity where a list has fewer; `top_k` is
    (lists,). Where a list is no longer than k only its order matters, so no document is settled.

    *Example*: the best of three.
    >>> settle(np.array([[2.0, 0.5, -3.0]]), np.array([[4.0, 2.5, 0.0]]), np.array([1])).dropped
    array([[False, False,  True]])
    """
    longest = lower.shape[1]
    kth_lower = np.take_along_axis(-np.sort(-lower), np.minimum(top_k - 1, longest - 1)[:, None], 1)
    next_upper = np.take_along_axis(-np.sort(-upper), np.minimum(top_k, longest - 1)[:, None], 1)
    selects = (upper > -np.inf).sum(1, keepdims=True) > top_k[:, None]
    return Settled(selects & (upper < kth_lower), selects & (lower > next_upper))


@dataclass(frozen=True)
class Ranking:
    """A rank rule at work on documents in lists, each list in consecutive rows."""

    rule: RankRule
    sizes: Array
    """(lists,) how many documents each has, at least one."""
    top_k: Array
    """(lists,)"""
    exact_top: bool = False
    """Run all documents that are not dropped to full depth."""

    @property
    def lists(self) -> Array:
        """(documents,) the list of each."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def columns(self) -> Array:
        """(documents,) the place of each in its list."""
        starts = self.sizes.cumsum() - self.sizes
        return np.asarray(np.arange(self.sizes.sum()) - np.repeat(starts, self.sizes))

    def padded(self, values: Array) -> Array:
        """(documents,) as (lists, longest), -infinity where a list has fewer."""
        table = np.full((len(self.sizes), self.sizes.max()), -np.inf)
        table[self.lists, self.columns] = values
        return table

    def skippable_exits(self, layers: Sequence[int]) -> int:
        """How many of the first exits need not run, because no document may leave there."""
        never = np.isinf(self.rule.threshold) or bool((self.sizes <= self.top_k).all())
        return len(layers) - 1 if never else 0

    def begin(self, rows: Array) -> "RankDecider":
        """A decider for these documents, before the first exit: all those of some of the lists, in any order."""
        lists, row = np.unique(self.lists[rows], return_inverse=True)
        shape = len(lists), int(self.sizes[lists].max())
        return RankDecider(
            self,
            top_k=self.top_k[lists],
            lower=np.full(shape, -np.inf),
            upper=np.full(shape, -np.inf),
            places=row * shape[1] + self.columns[rows],
            finite=np.ones(len(rows), bool),
        )

    def decide(self, logits: Array) -> Decision:
        """The exits taken and logits returned, as the engine would, from logits (documents, exits, outputs)."""
        documents, exits, outputs = logits.shape
        decision = Decision(
            np.empty(documents, np.int64),
            np.empty((documents, outputs), logits.dtype),
            np.empty(documents, bool),
        )
        waiting = np.arange(documents)
        decider = self.begin(waiting)
        for exit in range(exits):
            leaving, output = decider.step(exit, logits[waiting, exit])
            gone = waiting[leaving]
            decision.exits[gone], decision.logits[gone] = exit, output[leaving]
            decision.finite[gone] = decider.finite[leaving]
            waiting, decider = waiting[~leaving], decider[~leaving]
            if not len(waiting):
                break
        return decision

    def scores(self, decision: Decision) -> Array:
        """(documents,) the deepest estimate of each, on the scale of full depth."""
        return self.rule.estimate(decision.exits, relevance(decision.logits))


@dataclass
class RankDecider:
    """Applies a rank rule to documents, exit by exit; one row per document that still runs.

    After `leaving, output = decider.step(exit, logits)` continue with `decider = decider[~leaving]`. Documents that
    have left keep the bounds of their last exit.
    """

    ranking: Ranking
    top_k: Array  # (lists,)
    lower: Array  # (lists, longest), shared by the deciders of a window
    upper: Array
    places: Array  # (rows,) where each row is in the two, flattened
    finite: Array  # (rows,) False where an exit so far gave NaN or infinity

    def step(self, exit: int, logits: Array, gate: Array | None = None) -> tuple[Array, Array]:
        """(rows,) which leave at this exit, and their logits."""
        rule, scores = self.ranking.rule, relevance(logits)
        finite = np.isfinite(scores)
        self.finite = self.finite & finite
        if exit == len(rule.slopes) - 1:
            return np.ones(len(logits), bool), logits
        estimates, margin = rule.estimate(exit, np.where(finite, scores, 0.0)), rule.margin(exit)
        # nothing is known about a document whose score is not a number
        self.lower.flat[self.places] = np.where(finite, estimates - margin, -np.inf)
        self.upper.flat[self.places] = np.where(finite, estimates + margin, np.inf)
        dropped, certain = settle(self.lower, self.upper, self.top_k)
        settled = dropped if self.ranking.exact_top else dropped | certain
        return np.asarray(settled.flat[self.places]), logits

    def __getitem__(self, rows: Any) -> "RankDecider":
        return RankDecider(
            self.ranking, self.top_k, self.lower, self.upper, self.places[rows], self.finite[rows]
        )
