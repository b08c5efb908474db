"""Agreement: exit when full depth will probably predict the same, as learned from other examples."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from offramp.errors import BadOption, BadPolicy, Incompatible
from offramp.numerics import finite_rows, log_softmax
from offramp.problems import Array
from offramp.rules.base import FITTED, PerExample, Rule, fit_exit
from offramp.trace import Trace

CLIP = 20.0
"""Log-odds beyond this are saturated; clipped so that one extreme logit does not decide."""
WIDTHS = {7}, {5}, {11}
"""Coefficients of an exit: of classes, of regression, and of tags."""
NO_DOUBT = 1e-4
"""A number of wrong words that is as good as none."""


@dataclass(frozen=True)
class History(PerExample):
    last: Array  # (..., classes) log-odds at the previous exit; in regression its value
    total: Array  # (..., classes) sum over the exits so far
    low: Array  # (..., classes) smallest so far
    high: Array  # (..., classes) largest so far
    run: Array  # (..., classes) consecutive exits that agreed with the first of them, -1 for none
    exits: int  # so far


@dataclass(frozen=True)
class TagHistory:
    """What the words of each text have been tagged with."""

    tokens: Any  # `Lists`, or their counterpart in a graph
    prediction: Array  # (tokens,) tag at the previous exit, -1 for none
    least: Array  # (texts, 1) log-odds of the least certain word at the previous exit
    doubt: Array  # (texts, 1) logarithm of the number of words that were probably wrong there
    run: Array  # (texts, 1) consecutive exits that agreed on all words
    exits: int  # so far

    def __getitem__(self, rows: Any) -> Self:
        """The history of the texts that these tokens are of."""
        texts = np.unique(self.tokens.numbers[rows])
        kept = {name: getattr(self, name)[texts] for name in ("least", "doubt", "run")}
        return replace(self, tokens=self.tokens[rows], prediction=self.prediction[rows], **kept)


@dataclass(frozen=True)
class Agreement(Rule):
    """Exit when the estimated probability that full depth predicts the same is above the threshold.

    One logistic regression per exit on the history of the current prediction: its log-odds here and at the
    previous exit, their mean, minimum and maximum over all exits so far, and the number of consecutive exits that
    agree. In regression the history is of the predicted value. In multi-label problems the least certain label
    counts, and the prediction is the same if all labels are. Where tokens are tagged, one estimate for the text is
    made from all of its words: the least certain, the mean, how many are probably wrong outside of spans and inside,
    how many of each there are, and how much of that has changed since the previous exit. `fit` needs no labels.

    *Reference*: like the meta-classifier of CATs (Schuster et al. 2021, arXiv:2104.08803), on logits alone.
    *Relation*: `confidence` and `patience` read parts of the same history, with no estimate of what it means.
    *Shapes*: logits (..., classes) to readiness (...), a probability.
    *Example*:

    >>> rule = Agreement(coefficients=((0, 1, 0, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0, 0)))
    >>> state, first = rule.step(rule.start((1, 1)), np.array([[[2.0, 0.0]]]))
    >>> state, second = rule.step(state, np.array([[[4.0, 0.0]]]))  # the mean of 2 and 4
    >>> first.round(3), second.round(3)
    (array([[0.881]]), array([[0.953]]))
    """

    tolerance: float = 0.0
    """In regression, values no further apart than this are the same prediction."""
    coefficients: tuple[tuple[float, ...], ...] | None = field(default=None, metadata=FITTED)
    """(exits, 1 + features): intercept and weights of each exit."""
    outside: int | None = field(default=None, metadata=FITTED)
    """The tag of words that are in no span, if tokens are tagged and there is one."""

    probability = True
    regression = True
    highest = 1.0

    @property
    def is_fitted(self) -> bool:  # type: ignore[override]
        return self.coefficients is not None

    def __post_init__(self) -> None:
        if self.coefficients is not None:
            rows = tuple(tuple(map(float, row)) for row in self.coefficients)
            if {len(row) for row in rows} not in WIDTHS or not np.isfinite(rows).all():
                raise BadPolicy("the coefficients of agreement are incomplete; calibrate it again.")
            object.__setattr__(self, "coefficients", rows)

    @classmethod
    def fit(cls, trace: Trace, tolerance: float | None = None, kept: Array | None = None) -> Self:
        """The rule fitted to a trace. Calibrate its threshold on other examples.

        `tolerance` is for regression: numbers no further apart are the same prediction. `kept` (exits, examples) is
        whether an exit is good enough for an example; by default whether it predicts the same as the reference.
        """
        if not trace.problem.has_classes and not tolerance:
            raise BadOption(
                "in regression, agreement needs the tolerance within which two numbers count as equal: "
                "agreement:0,tolerance=0.1"
            )
        tags = trace.problem.of_tokens
        outside = np.flatnonzero(trace.scheme.outside)[:1].tolist() if tags else []
        rule = cls(tolerance or 0.0, outside=outside[0] if outside else None)
        state: Any = rule.start(trace.lists) if tags and trace.lists is not None else None
        rows = []
        for exit in range(len(trace.layers)):
            logits = trace.problem.choices(trace.logits[:, exit])
            state, features = rule.observe(state or rule.start(logits.shape[:2]), logits)
            same = trace.agrees(trace.logits[:, exit], tolerance) if kept is None else kept[exit]
            rows.append(fit_exit(features[:, 0], same))
        return replace(rule, coefficients=tuple(rows))

    def check(self, exits: int) -> None:
        if self.coefficients is None:
            raise Incompatible("agreement is not fitted; calibrate it on a trace first (offramp calibrate).")
        if len(self.coefficients) != exits:
            raise Incompatible(
                f"agreement was fitted for {len(self.coefficients)} exits and there are {exits}; calibrate it again."
            )

    def start(self, examples: Any) -> History | TagHistory:
        """The state before the first exit of so many examples, or of texts whose tokens are tagged."""
        if not isinstance(examples, int | tuple):
            texts = np.zeros((len(examples.sizes), 1))
            return TagHistory(examples, np.full(len(examples.numbers), -1), texts, texts, texts, exits=0)
        none = np.zeros(examples)
        zero, most = none[..., None], np.full_like(none, np.inf)[..., None]
        return History(zero, zero, low=most, high=-most, run=zero - 1, exits=0)

    def step(self, seen: Any, logits: Array) -> tuple[Any, Array]:
        state, features = self.observe(seen, logits)
        intercept, weights = self._weights[state.exits - 1]
        readiness: Array = 1 / (1 + np.exp(-intercept - (weights * features).sum(-1)))
        return state, state.tokens.spread(readiness) if isinstance(state, TagHistory) else readiness

    @cached_property
    def _weights(self) -> list[tuple[float, Array]]:
        """Intercept and weights (features,) of each exit."""
        assert self.coefficients is not None  # see `check`
        return [(first, np.array(others)) for first, *others in self.coefficients]

    def observe(self, seen: Any, logits: Array) -> tuple[Any, Array]:
        """The history after this exit, and the features (..., features) that the estimate is made from.

        Several labels have one estimate, of the least certain: their features are (examples, 1, features). So have
        the tags of a text.
        """
        # an exit that gives NaN or infinity is undecided
        logits = np.where(finite_rows(logits)[..., None], logits, 0)
        if isinstance(seen, TagHistory):
            return self._observe_tags(seen, logits)
        number = logits.shape[-1] == 1
        values = logits.astype(np.float64) if number else log_odds(logits)
        previous = seen.last if seen.exits else values
        exits, total = seen.exits + 1, seen.total + values
        low, high = np.minimum(seen.low, values), np.maximum(seen.high, values)
        if number:
            same = (np.abs(values - previous) <= self.tolerance) & bool(seen.exits)
            run = np.where(same, seen.run + 1, 0.0)
            distances = self._distances(values - previous, values - total / exits, high - low)
            features: Array = np.concatenate([distances, run], axis=-1)
        else:
            prediction = logits.argmax(-1)[..., None]
            run = np.where(prediction == np.arange(logits.shape[-1]), seen.run + 1, -1.0)
            every = [values, previous, total / exits, low, high, run]
            places = prediction + logits.shape[-1] * np.arange(len(every))
            features = np.take_along_axis(np.concatenate(every, axis=-1), places, -1)
        if logits.ndim > 2 and logits.shape[1] > 1:
            features = features.min(1, keepdims=True)
        return History(values, total, low, high, run, exits), features

    def _observe_tags(self, seen: TagHistory, logits: Array) -> tuple[TagHistory, Array]:
        """As `observe`, for logits (tokens, 1, tags) and features (texts, 1, features)."""
        tokens, prediction = seen.tokens, logits.argmax(-1)
        certainty = np.take_along_axis(log_odds(logits), prediction[..., None], -1)[..., 0]  # (tokens, 1)
        prediction, certainty = prediction[:, 0], certainty[:, 0]
        wrong = 1 / (1 + np.exp(certainty))
        inside = (prediction >= 0 if self.outside is None else prediction != self.outside).astype(np.float64)
        differs = (prediction != seen.prediction).astype(np.float64)
        words, spans = tokens.total(inside * 0 + 1), tokens.total(inside)
        least = tokens.least(certainty)
        wrong_inside, all_wrong = tokens.total(wrong * inside), tokens.total(wrong)
        doubt = np.log(all_wrong + NO_DOUBT)
        new = tokens.total(differs)
        run = (seen.run[:, 0] + 1) * (new == 0)
        columns = [
            least,
            tokens.total(certainty) / words,
            np.log(np.maximum(all_wrong - wrong_inside, 0) + NO_DOUBT),
            np.log(wrong_inside + NO_DOUBT),
            np.log(1 + spans),
            np.log(words),
            seen.least[:, 0] if seen.exits else least,
            seen.doubt[:, 0] if seen.exits else doubt,
            np.log(1 + new) if seen.exits else np.log(1 + new * 0),
            run,
        ]
        features: Array = np.stack(columns, axis=-1)[:, None]
        now = TagHistory(tokens, prediction, least[:, None], doubt[:, None], run[:, None], seen.exits + 1)
        return now, features

    def _distances(self, *distances: Array) -> Array:
        """How close the value is to earlier ones, in units of the tolerance, as negative logarithms."""
        away = np.abs(np.concatenate(distances, axis=-1))
        close: Array = -np.log(away / (self.tolerance or 1.0) + 1e-3)
        return close


def log_odds(logits: Array) -> Array:
    """(..., classes) the log-odds of each class against all others."""
    if logits.shape[-1] == 2:
        wide = logits.astype(np.float64)
        odds: Array = wide - wide[..., ::-1]
    else:
        log_p = log_softmax(logits)
        below = np.minimum(log_p, 0)
        with np.errstate(divide="ignore"):  # a probability of 1 has infinite odds
            # p - 1 as a product that keeps its digits where p is close to 1, as expm1 would
            odds = log_p - np.log(-np.tanh(below / 2) * (np.exp(below) + 1))
    return np.minimum(np.maximum(odds, -CLIP), CLIP)  # faster than clip
