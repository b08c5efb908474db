"""Rank: a document of a query exits when it is settled whether it is among the best k."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from offramp.errors import BadData, BadPolicy, Incompatible
from offramp.lists import Lists
from offramp.problems import Array
from offramp.rules.base import ALWAYS_WRITTEN, FITTED, Rule, Shape, fit_exit
from offramp.trace import Trace


@dataclass(frozen=True)
class Standings:
    """The documents that still run, and the last estimate of all."""

    lists: Lists
    top_k: Array  # (lists,)
    estimates: Array  # (lists, longest) -infinity where there is none
    exits: int  # so far

    def __getitem__(self, rows: Any) -> Self:
        """Documents that have exited keep the estimate of their last exit."""
        numbers, columns = self.lists.numbers[rows], self.lists.columns[rows]
        return replace(self, lists=replace(self.lists, numbers=numbers, columns=columns))


@dataclass(frozen=True)
class Rank(Rule):
    """Exit when the estimated probability of being among the best k at full depth is below the threshold, or above 1
    minus the threshold.

    The score of a document is its `relevance`. `slope * score + intercept` estimates that of full depth. The
    log-odds of being among the best k are linear in the margin of this estimate to the border of the best k, and in
    the place in the list, see `standing`. A list of no more than k documents runs to full depth, for it only needs
    an order, and so does one with a score that is not a number. `fit` needs no labels.

    *Relation*: `agreement` asks the same of single examples.
    *Shapes*: logits (documents, 1, outputs) to readiness (documents, 1), minus a probability.
    *Example*: the best of three, with log-odds that are the margin.

    >>> rule = Rank(1, slopes=(1, 1), intercepts=(0, 0), coefficients=((0, 1, 0),))
    >>> start = rule.start(Lists.consecutive([3]))
    >>> rule.step(start, np.array([[[5.0]], [[4.0]], [[0.0]]]))[1].round(2)
    array([[-0.38],
           [-0.38],
           [-0.01]])
    """

    top_k: int = field(default=10, metadata=ALWAYS_WRITTEN)
    exact_top: bool = False
    """Run all documents to full depth that may be among the best k, for their exact order."""
    slopes: tuple[float, ...] | None = field(default=None, metadata=FITTED)
    """One per exit; 1 at the last."""
    intercepts: tuple[float, ...] = field(default=(), metadata=FITTED)
    """One per exit; 0 at the last."""
    coefficients: tuple[tuple[float, ...], ...] = field(default=(), metadata=FITTED)
    """(exits - 1, 3): the intercept, and the weights of margin and place, of each exit but the last."""

    sign = -1
    highest = 0.0
    regression = True

    @property
    def is_fitted(self) -> bool:  # type: ignore[override]
        return self.slopes is not None

    def __post_init__(self) -> None:
        if type(self.top_k) is not int or self.top_k < 1:
            raise BadPolicy(f"rank needs a top_k of 1 or more, not {self.top_k!r}.")
        if self.slopes is None:
            return
        for name in ("slopes", "intercepts"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        rows = tuple(tuple(map(float, row)) for row in self.coefficients)
        object.__setattr__(self, "coefficients", rows)
        complete = len(self.slopes) == len(self.intercepts) == len(rows) + 1 and {*map(len, rows)} <= {3}
        if not complete or (self.slopes[-1], self.intercepts[-1]) != (1, 0):
            raise BadPolicy("the numbers of rank are incomplete; calibrate it again.")
        if not np.isfinite([*self.slopes, *self.intercepts, *np.ravel(rows)]).all():
            raise BadPolicy("the numbers of rank must be finite; calibrate it again.")

    @classmethod
    def fit(cls, trace: Trace, top_k: int) -> Self:
        """The rule fitted to a trace of lists. Calibrate its threshold on other queries.

        For each exit, least squares to the score of the last exit, and a logistic regression of being in the top k.
        """
        scores = relevance(trace.logits.astype(np.float64))  # (documents, exits)
        bad = np.flatnonzero(~np.isfinite(scores).all(1))
        if len(bad):
            raise BadData(f"the model returned NaN or infinity for row {trace.ids[bad[0]]} of the trace.")
        last = scores[:, -1]
        centred, target = scores - scores.mean(0), last - last.mean()
        variance = (centred**2).mean(0)
        slopes = np.divide(
            (centred * target[:, None]).mean(0), variance, out=np.zeros_like(variance), where=variance > 0
        )
        intercepts = last.mean() - slopes * scores.mean(0)
        slopes[-1], intercepts[-1] = 1, 0
        return cls(
            top_k,
            slopes=tuple(slopes),
            intercepts=tuple(intercepts),
            coefficients=fit_standing(trace, slopes * scores + intercepts, top_k),
        )

    def check(self, exits: int) -> None:
        if self.slopes is None:
            raise Incompatible("rank is not fitted; calibrate it on a trace first (offramp calibrate).")
        if len(self.slopes) != exits:
            raise Incompatible(
                f"rank was fitted for {len(self.slopes)} exits and there are {exits}; calibrate it again."
            )

    def start(self, examples: Shape | Lists, exit: int = 0) -> Standings:
        """The state before an exit. Without lists, each example is a list of one."""
        if not isinstance(examples, Lists):
            examples = Lists.consecutive(np.ones(np.atleast_1d(examples)[0], int))
        shape = len(examples.sizes), examples.sizes.max(initial=0)
        return Standings(examples, self.wanted(examples), np.full(shape, -np.inf), exit)

    def may_settle(self, lists: Lists | None) -> bool:
        """Whether any document may exit before the last."""
        return lists is not None and bool((lists.sizes > self.wanted(lists)).any())

    def wanted(self, lists: Lists) -> Array:
        """(lists,) how many of the best documents to find."""
        return np.full(len(lists.sizes), self.top_k) if lists.top_k is None else lists.top_k

    def step(self, seen: Standings, logits: Array) -> tuple[Standings, Array]:
        lists, scores, readiness = seen.lists, relevance(logits[:, 0]), np.full((len(logits), 1), -np.inf)
        estimates = seen.estimates.copy()
        finite = np.isfinite(scores)
        estimates[lists.numbers, lists.columns] = np.where(finite, self.estimate(seen.exits, scores), -np.inf)
        state = replace(seen, estimates=estimates, exits=seen.exits + 1)
        if seen.exits == len(self.coefficients):
            return state, readiness
        is_open = (lists.sizes > seen.top_k) & ((estimates > -np.inf).sum(1) == lists.sizes)
        rows = is_open[lists.numbers]
        margin, place = standing(estimates[is_open], seen.top_k[is_open])
        at = (is_open.cumsum() - 1)[lists.numbers[rows]], lists.columns[rows]
        intercept, by_margin, by_place = self.coefficients[seen.exits]
        log_odds = intercept + by_margin * margin[at] + by_place * place[at]
        against = -log_odds if self.exact_top else np.abs(log_odds)
        with np.errstate(over="ignore"):  # 1 / inf is 0
            readiness[rows, 0] = -1 / (1 + np.exp(against))
        return state, readiness

    def output(self, seen: Standings, logits: Array) -> Array:
        """The estimate of full depth, so that documents of different exits can be compared."""
        exit = seen.exits - 1
        if exit == len(self.coefficients):
            return logits
        estimates = self.estimate(exit, relevance(logits))[..., None]
        single = logits.shape[-1] == 1
        return estimates if single else np.concatenate([np.zeros_like(estimates), estimates], axis=-1)

    def estimate(self, exit: int, scores: Array) -> Array:
        assert self.slopes is not None  # see `check`
        return np.asarray(self.slopes[exit] * scores.astype(np.float64) + self.intercepts[exit])


def relevance(logits: Array) -> Array:
    """(...) the logit of a document being relevant, from logits (..., outputs): the only output, or the second of two
    classes against the first.

    >>> relevance(np.array([[0.5, 2.0]])), relevance(np.array([[3.0]]))
    (array([1.5]), array([3.]))
    """
    last: Array = logits[..., -1]
    with np.errstate(invalid="ignore"):  # inf - inf
        return last if logits.shape[-1] == 1 else last - logits[..., 0]


class Standing(NamedTuple):
    """(lists, documents) how each document compares with the rest of its list."""

    margin: Array
    """From the middle between the k-th and the next best estimate."""
    place: Array
    """The logarithm of its place in the list, from 1, over k + 1/2."""


def standing(estimates: Array, top_k: Array) -> Standing:
    """The standing of estimates (lists, documents), -infinity where a list has fewer but more than k; `top_k` is
    (lists,).

    *Example*: the best of three.
    >>> middle = standing(np.array([[2.0, 0.5, -3.0]]), np.array([1]))
    >>> middle.margin, middle.place.round(2)
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


def fit_standing(trace: Trace, estimates: Array, top_k: int) -> tuple[tuple[float, ...], ...]:
    """Coefficients of each exit but the last, from lists of more than k; `estimates` are (documents, exits)."""
    sizes = np.ones(len(trace), int) if trace.sizes is None else trace.sizes
    rows = np.repeat(sizes > top_k, sizes)
    if not rows.any():  # nothing will be settled
        return tuple((0.0, 0.0, 0.0) for _ in trace.layers[1:])
    lists = Lists.consecutive(sizes[sizes > top_k])
    at, k = (lists.numbers, lists.columns), np.full(len(lists.sizes), top_k)
    best = lists.ranks(relevance(trace.reference_logits[rows]))[at] < top_k
    coefficients = []
    for values in estimates[rows].T[:-1]:
        margin, place = standing(lists.padded(values), k)
        coefficients.append(fit_exit(np.stack([margin[at], place[at]], axis=-1), best))
    return tuple(coefficients)
