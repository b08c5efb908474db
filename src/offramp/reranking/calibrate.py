"""calibrate_ranking(): a rank rule with a guarantee about the top k of each query, from pairs without labels.

*Reference*: Learn then Test, as in `offramp.measuring.guarantee`: thresholds are tested from the safest to the
loosest, each at the full level delta, and testing stops at the first failure. An example is a query here, and its
loss lies between 0 and 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offramp.errors import BadData
from offramp.guarantees.certificate import Certificate, Conditions, require
from offramp.guarantees.losses import LOSSES, Loss, Reference, ranks
from offramp.guarantees.testing import Part, first_failure, results_of
from offramp.measuring.calibrate import check_held_out
from offramp.measuring.guarantee import too_risky
from offramp.policy.ranking import Ranking, RankRule, check_reranker, relevance, standing
from offramp.problems import Array
from offramp.rules.base import fit_exit
from offramp.trace import Trace
from offramp.wording import count

GRID = (0.0, *np.geomspace(0.0005, 0.25, 60).round(5).tolist())
"""Thresholds, the safest first; fixed, because they must not depend on the data."""
RANK_RISKS = [name for name, loss in LOSSES.items() if loss.unit == "query"]
FIT_SHARE = 1 / 5
"""Of the queries: the rule is fitted on these, and its threshold set on the others."""


@dataclass(frozen=True)
class RankGuarantee:
    """Fewest layers such that the mean loss per query is at most epsilon, with probability at least 1 - delta."""

    epsilon: float
    delta: float = 0.05
    risk: str = "overlap"
    """ "overlap": the share of the top k at full depth that is not found; "ndcg": 1 - nDCG@k, where the documents
    of the top k at full depth have the gains k, k-1, ..., 1."""
    top_k: int = 10

    def __post_init__(self) -> None:
        require(0 < self.epsilon < 1, f"epsilon={self.epsilon}: expected a fraction between 0 and 1")
        require(0 < self.delta < 1, f"delta={self.delta}: expected a probability between 0 and 1")
        require(self.risk in RANK_RISKS, f"risk={self.risk!r}: choose one of {', '.join(RANK_RISKS)}")
        require(self.top_k >= 1, f"top_k={self.top_k}: expected 1 or more")

    @property
    def loss(self) -> Loss:
        return LOSSES[self.risk]


@dataclass(frozen=True)
class QuerySet:
    """A trace whose rows are documents, those of each query together."""

    trace: Trace
    sizes: Array
    """(queries,) documents of each."""

    @classmethod
    def group(cls, trace: Trace, queries: Sequence[Any]) -> "QuerySet":
        """`queries` has the query of each row, in any order."""
        if len(queries) != len(trace):
            raise BadData(
                f"{len(queries)} queries for {count(len(trace), 'row')} of the trace; give one per row."
            )
        first: dict[Any, int] = {}
        number = np.array([first.setdefault(query, len(first)) for query in queries])
        return cls(trace[np.argsort(number, kind="stable")], np.bincount(number))

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, chosen: Array) -> "QuerySet":
        """Some of the queries, given by a mask."""
        return QuerySet(self.trace[np.repeat(chosen, self.sizes)], self.sizes[chosen])

    def ranking(self, rule: RankRule, exact_top: bool = False) -> Ranking:
        return Ranking(rule, self.sizes, np.full(len(self), rule.top_k), exact_top)


def calibrate_ranking(
    trace: Trace,
    queries: Sequence[Any],
    target: RankGuarantee,
    *,
    seed: int = 0,
    choices: int = 1,
    allow_training_rows: bool = False,
) -> RankRule:
    """The loosest rule that keeps the guarantee, with its certificate; or `NoSafeThreshold`.

    Args:
        trace: of pairs (query, document); no labels are needed.
        queries: the query of each row, or a number for it.
        target: what to guarantee.
        seed: of the split into queries that the rule is fitted on and the others.
        choices: the number of such calls among whose results one is chosen: all of them share delta.
        allow_training_rows: accept a trace of pairs that the model was trained on.
    """
    check_held_out(trace, allow_training_rows)
    check_reranker(trace.label_names or [""] * trace.logits.shape[-1], trace.problem)
    every = QuerySet.group(trace, queries)
    fit_on, test_on = split(every, seed)
    rule = fit(fit_on, target.top_k)
    full = reference_ranks(test_on, target.top_k)
    reference = Reference(full, sizes=test_on.sizes, top_k=target.top_k)

    def losses_at(threshold: float) -> Array:
        """The guarantee covers both ways to rank."""
        safe = replace(rule, threshold=threshold)
        top, exact = (ranking_losses(test_on, safe, reference, target.risk, exact) for exact in (False, True))
        return np.maximum(top, exact)

    bound, delta = target.loss.bound, target.delta / choices
    parts = [Part(target.epsilon, np.ones(len(test_on), bool))]
    passed = first_failure(map(losses_at, GRID), parts, bound, delta)
    if not passed:
        raise too_risky(target.risk, results_of(losses_at(GRID[0]), parts, bound)[0], delta, len(fit_on))
    threshold = GRID[passed - 1]
    return issue(
        replace(rule, threshold=threshold), losses_at(threshold), test_on, len(fit_on), target, choices
    )


def split(queries: QuerySet, seed: int) -> tuple[QuerySet, QuerySet]:
    """Queries to fit the rule on, and to set its threshold on."""
    fitted = round(FIT_SHARE * len(queries))
    if not 0 < fitted < len(queries):
        raise BadData(f"not enough queries to calibrate on ({len(queries)}).")
    chosen = np.zeros(len(queries), bool)
    chosen[np.random.default_rng(seed).permutation(len(queries))[:fitted]] = True
    return queries.select(chosen), queries.select(~chosen)


def fit(queries: QuerySet, top_k: int) -> RankRule:
    """Least squares to the score of the last exit, and a logistic regression of being in the top k, for each exit."""
    scores = relevance(queries.trace.logits.astype(np.float64))  # (documents, exits)
    if not np.isfinite(scores).all():
        bad = int(np.flatnonzero(~np.isfinite(scores).all(1))[0])
        raise BadData(f"the model returned NaN or infinity for row {queries.trace.ids[bad]} of the trace.")
    last = scores[:, -1]
    centred, wanted = scores - scores.mean(0), last - last.mean()
    variance = (centred**2).mean(0)
    slopes = np.divide(
        (centred * wanted[:, None]).mean(0), variance, out=np.zeros_like(variance), where=variance > 0
    )
    intercepts = last.mean() - slopes * scores.mean(0)
    slopes[-1], intercepts[-1] = 1, 0
    coefficients = fit_standing(queries.select(queries.sizes > top_k), slopes, intercepts, top_k)
    return RankRule(top_k, 0.0, tuple(slopes), tuple(intercepts), coefficients)


def fit_standing(queries: QuerySet, slopes: Array, intercepts: Array, top_k: int) -> Any:
    """Coefficients of each exit but the last, from queries with more than k documents."""
    scores = relevance(queries.trace.logits.astype(np.float64))
    if not len(queries):  # nothing will be dropped
        return ((0.0, 0.0, 0.0),) * (scores.shape[1] - 1)
    ranking = queries.ranking(RankRule.full_depth(scores.shape[1], top_k))
    at = ranking.lists, ranking.columns
    best = reference_ranks(queries, top_k)[at] < top_k
    estimates = slopes * scores + intercepts
    standings = (standing(ranking.padded(each), ranking.top_k) for each in estimates.T[:-1])
    return tuple(fit_exit(np.stack([each.margin[at], each.place[at]], axis=-1), best) for each in standings)


def reference_ranks(queries: QuerySet, top_k: int) -> Array:
    """(queries, longest) the rank of each document, from 0, that is to be kept."""
    trace = queries.trace
    logits = trace.logits[:, -1] if trace.reference is None else trace.reference
    rule = RankRule.full_depth(len(trace.layers), top_k)
    return ranks(queries.ranking(rule).padded(relevance(logits)))


def ranking_losses(
    queries: QuerySet, rule: RankRule, reference: Reference, risk: str, exact_top: bool
) -> Array:
    """(queries,) from 0 to 1."""
    ranking = queries.ranking(rule, exact_top)
    scores = ranking.scores(ranking.decide(queries.trace.logits))
    return LOSSES[risk].values(ranks(ranking.padded(scores)), reference)


def issue(
    rule: RankRule, losses: Array, queries: QuerySet, fitted_on: int, target: RankGuarantee, choices: int
) -> RankRule:
    trace = queries.trace
    exits = queries.ranking(rule).decide(trace.logits).exits
    layers = np.asarray(trace.layers)[exits]
    certificate = Certificate(
        risk=target.risk,
        epsilon=target.epsilon,
        delta=target.delta,
        bound=target.loss.bound,
        examples=len(queries),
        observed_risk=float(losses.mean()),
        reference=trace.reference_name,
        data=trace.data,
        top_k=target.top_k,
        rules_tried=choices,
        fitted_on=fitted_on,
        conditions=Conditions(
            policy=str(rule),
            mean_layer=float(layers.mean()),
            exits=tuple((np.bincount(exits, minlength=len(trace.layers)) / len(trace)).tolist()),
            **trace.conditions(),
        ),
    )
    return replace(rule, certificate=certificate)
