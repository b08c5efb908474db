"""RankRule: which documents of a list need more depth to find its top k. A policy decides for single examples.

After each exit every document of a query has a probability of being among the best k at full depth, from its margin
to the border of the top k and its place in the list. A document is dropped when it is unlikely to be among them. One
that is almost certain to be among them stops too, unless their exact order is asked for. Live and offline decisions
run the same code: the engine calls `RankDecider.step` as logits appear, `Ranking.decide` calls it over a whole array.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np

from offramp.errors import BadPolicy, Incompatible
from offramp.guarantees.certificate import Certificate
from offramp.policy.decide import Decision, Exits, replay
from offramp.problems import SINGLE_LABEL, Array, Problem
from offramp.wording import count


def relevance(logits: Array) -> Array:
    """(...) the logit of a document being relevant, from logits (..., outputs): the only output, or the second of two
    classes against the first.

    >>> relevance(np.array([[0.5, 2.0]])), relevance(np.array([[3.0]]))
    (array([1.5]), array([3.]))
    """
    single: Array = logits[..., -1]
    return single if logits.shape[-1] == 1 else single - logits[..., 0]


def check_reranker(labels: Sequence[str], problem: Problem) -> None:
    """Refuse a model whose outputs are not the relevance of a document."""
    if not (len(labels) == 1 or (len(labels) == 2 and problem == SINGLE_LABEL)):
        raise Incompatible(
            f"the model has {len(labels)} labels; reranking needs one output, or two classes of which one is right."
        )


@dataclass(frozen=True)
class RankRule:
    """Estimates from the score at each exit, and how sure they must be.

    The score of a document at an exit is its `relevance`. The estimate of that at full depth is `slope * score +
    intercept`. The log-odds of being in the top k are linear in the document's `standing`.
    """

    top_k: int
    """The k that it was calibrated for."""
    threshold: float
    """A document stops when its probability of being in the top k is below this or above 1 minus this; 0 for full
    depth."""
    slopes: tuple[float, ...]
    """One per exit; 1 at the last."""
    intercepts: tuple[float, ...]
    coefficients: tuple[tuple[float, float, float], ...]
    """One row per exit but the last: the intercept, and the weights of margin and place."""
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        for name in ("slopes", "intercepts"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        rows = tuple(tuple(map(float, row)) for row in self.coefficients)
        object.__setattr__(self, "coefficients", rows)
        if not len(self.slopes) == len(self.intercepts) == len(rows) + 1 or {*map(len, rows)} - {3}:
            raise BadPolicy(
                "a rank rule needs a slope, an intercept and, but for the last, three coefficients per exit."
            )
        if not np.isfinite([*self.slopes, *self.intercepts, *(value for row in rows for value in row)]).all():
            raise BadPolicy("the numbers of a rank rule must be finite.")
        if type(self.top_k) is not int or self.top_k < 1 or not 0 <= self.threshold < 0.5:
            raise BadPolicy(
                f"a rank rule needs a top_k of 1 or more and a threshold from 0 to 0.5, not {self.top_k!r} and "
                f"{self.threshold!r}."
            )
        if (self.slopes[-1], self.intercepts[-1]) != (1, 0):
            raise BadPolicy("the last exit of a rank rule gives the score itself: slope 1 and intercept 0.")

    @classmethod
    def full_depth(cls, exits: int, top_k: int = 10) -> Self:
        """Runs every document to the last exit; one that a deadline stops keeps its score."""
        return cls(top_k, 0.0, (1.0,) * exits, (0.0,) * exits, ((0.0, 0.0, 0.0),) * (exits - 1))

    def __str__(self) -> str:
        """The text form; the fitted numbers are not part of it.

        >>> str(RankRule(10, 0.01, (0.8, 1), (0.1, 0), ((0.5, 2, -1),)))
        'rank:0.01,top_k=10'
        """
        return f"rank:{self.threshold:g},top_k={self.top_k}"

    def estimate(self, exits: Any, scores: Array) -> Array:
        """The score at full depth, from those at these exits."""
        return np.asarray(np.asarray(self.slopes)[exits] * scores + np.asarray(self.intercepts)[exits])

    def settle(self, exit: int, margin: Array, place: Array) -> "Settled":
        """Of documents with this standing at an exit."""
        intercept, by_margin, by_place = self.coefficients[exit]
        log_odds = intercept + by_margin * margin + by_place * place
        if self.threshold == 0:
            return Settled(np.zeros(len(log_odds), bool), np.zeros(len(log_odds), bool))
        limit = np.log(self.threshold / (1 - self.threshold))
        return Settled(log_odds < limit, log_odds > -limit)

    def check(self, layers: Sequence[int], labels: Sequence[str], problem: Problem) -> None:
        """Raise `Incompatible` if this rule cannot run on a model with these exits and labels."""
        check_reranker(labels, problem)
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
        except BadPolicy:
            raise
        except (TypeError, ValueError) as error:
            raise BadPolicy(f"the rank rule is incomplete ({error}); calibrate again.") from error


class Settled(NamedTuple):
    """(documents,) which documents need no more layers."""

    dropped: Array
    certain: Array


class Standing(NamedTuple):
    """(lists, documents) where each document is, compared with the others of its list."""

    margin: Array
    """From the middle between the k-th and the next best estimate."""
    place: Array
    """The logarithm of its place in the list, from 1, over k + 1/2."""


def standing(estimates: Array, top_k: Array) -> Standing:
    """Of estimates (lists, documents), -infinity where a list has fewer but more than k; `top_k` is (lists,).

    *Example*: the best of three.
    >>> found = standing(np.array([[2.0, 0.5, -3.0]]), np.array([1]))
    >>> found.margin, found.place.round(2)
    (array([[ 0.75, -0.75, -4.25]]), array([[-0.41,  0.29,  0.69]]))
    """
    order = np.argsort(-estimates, axis=1)
    ordered = np.take_along_axis(estimates, order, 1)
    last = estimates.shape[1] - 1
    kth, following = (
        np.take_along_axis(ordered, np.minimum(index, last)[:, None], 1) for index in (top_k - 1, top_k)
    )
    # equal estimates have the same place, so the order of documents does not matter
    better = np.zeros(estimates.shape)
    better[:, 1:] = np.where(ordered[:, 1:] < ordered[:, :-1], np.arange(1, last + 1), 0)
    place = np.empty(estimates.shape)
    np.put_along_axis(
        place, order, np.log((np.maximum.accumulate(better, 1) + 1) / (top_k[:, None] + 0.5)), 1
    )
    return Standing(estimates - (kth + following) / 2, place)


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
        never = self.rule.threshold == 0 or bool((self.sizes <= self.top_k).all())
        return len(layers) - 1 if never else 0

    def begin(self, rows: Array) -> "RankDecider":
        """A decider for these documents, before the first exit: all those of some of the lists, in any order."""
        lists, row = np.unique(self.lists[rows], return_inverse=True)
        shape = len(lists), int(self.sizes[lists].max())
        return RankDecider(
            self,
            sizes=self.sizes[lists],
            top_k=self.top_k[lists],
            estimates=np.full(shape, -np.inf),
            lists=row,
            columns=self.columns[rows],
            finite=np.ones(len(rows), bool),
        )

    def decide(self, logits: Array) -> Decision:
        """The exits taken and logits returned, as the engine would, from logits (documents, exits, outputs)."""
        return replay(cast(Any, self.begin(np.arange(len(logits)))), Exits(logits, None, None))

    def scores(self, decision: Decision) -> Array:
        """(documents,) the deepest estimate of each, on the scale of full depth."""
        return self.rule.estimate(decision.exits, relevance(decision.logits))


@dataclass
class RankDecider:
    """Applies a rank rule to documents, exit by exit; one row per document that still runs.

    After `leaving, output = decider.step(exit, logits)` continue with `decider = decider[~leaving]`. Documents that
    have left keep the estimate of their last exit.
    """

    ranking: Ranking
    sizes: Array  # (lists,)
    top_k: Array  # (lists,)
    estimates: Array  # (lists, longest), shared by the deciders of a window
    lists: Array  # (rows,) where each row is in them
    columns: Array  # (rows,)
    finite: Array  # (rows,) False where an exit so far gave NaN or infinity

    def step(self, exit: int, logits: Array, gate: Array | None = None) -> tuple[Array, Array]:
        """(rows,) which leave at this exit, and their logits."""
        rule, scores = self.ranking.rule, relevance(logits)
        finite = np.isfinite(scores)
        self.finite = self.finite & finite
        if exit == len(rule.slopes) - 1:
            return np.ones(len(logits), bool), logits
        self.estimates[self.lists, self.columns] = np.where(finite, rule.estimate(exit, scores), -np.inf)
        # a list no longer than k only needs an order; one with a score that is not a number could have any
        known = (self.estimates > -np.inf).sum(1) == self.sizes
        is_open = (self.sizes > self.top_k) & known
        settled = is_open[self.lists]
        margin, place = standing(self.estimates[is_open], self.top_k[is_open])
        at = (is_open.cumsum() - 1)[self.lists[settled]], self.columns[settled]
        dropped, certain = rule.settle(exit, margin[at], place[at])
        settled[settled] = dropped if self.ranking.exact_top else dropped | certain
        return settled, logits

    def __getitem__(self, rows: Any) -> "RankDecider":
        return replace(self, lists=self.lists[rows], columns=self.columns[rows], finite=self.finite[rows])
