"""Agreement: exit when full depth will probably predict the same, as learned from other examples."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from offramp.errors import BadOption, BadPolicy, Incompatible
from offramp.numerics import finite_rows, log_softmax
from offramp.problems import Array
from offramp.rules.base import FITTED, PerExample, Rule, Shape, fit_exit
from offramp.trace import Trace

CLIP = 20.0
"""Log-odds beyond this are saturated; clipped so that one extreme logit does not decide."""
WIDTHS = {7}, {5}
"""Coefficients of an exit: of classes, and of regression."""


@dataclass(frozen=True)
class History(PerExample):
    last: Array  # (..., classes) log-odds at the previous exit; in regression its value
    total: Array  # (..., classes) sum over the exits so far
    low: Array  # (..., classes) smallest so far
    high: Array  # (..., classes) largest so far
    prediction: Array  # (...) class at the previous exit, -1 for none
    run: Array  # (...) consecutive exits that agreed
    exits: int  # so far


@dataclass(frozen=True)
class Agreement(Rule):
    """Exit when the estimated probability that full depth predicts the same is above the threshold.

    One logistic regression per exit on the history of the current prediction: its log-odds here and at the
    previous exit, their mean, minimum and maximum over all exits so far, and the number of consecutive exits that
    agree. In regression the history is of the predicted value. In multi-label problems the least certain label
    counts, and the prediction is the same if all labels are. `fit` needs no labels.

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
    def fit(cls, trace: Trace, tolerance: float | None = None) -> Self:
        """The rule fitted to a trace. Calibrate its threshold on other examples.

        `tolerance` is for regression: numbers no further apart are the same prediction.
        """
        if not trace.problem.has_classes and not tolerance:
            raise BadOption(
                "in regression, agreement needs the tolerance within which two numbers count as equal: "
                "agreement:0,tolerance=0.1"
            )
        rule = cls(tolerance or 0.0)
        state, rows = None, []
        for exit in range(len(trace.layers)):
            logits = trace.problem.choices(trace.logits[:, exit])
            state, features = rule.observe(state or rule.start(logits.shape[:2]), logits)
            rows.append(fit_exit(features[:, 0], trace.agrees(trace.logits[:, exit], tolerance)))
        return cls(rule.tolerance, tuple(rows))

    def check(self, exits: int) -> None:
        if self.coefficients is None:
            raise Incompatible("agreement is not fitted; calibrate it on a trace first (offramp calibrate).")
        if len(self.coefficients) != exits:
            raise Incompatible(
                f"agreement was fitted for {len(self.coefficients)} exits and there are {exits}; calibrate it again."
            )

    def start(self, examples: Shape) -> History:
        none = np.zeros(examples)
        zero, most = none[..., None], np.full_like(none, np.inf)[..., None]
        return History(zero, zero, low=most, high=-most, prediction=none - 1, run=none, exits=0)

    def step(self, seen: History, logits: Array) -> tuple[History, Array]:
        state, features = self.observe(seen, logits)
        intercept, weights = self._weights[state.exits - 1]
        readiness: Array = 1 / (1 + np.exp(-intercept - (weights * features).sum(-1)))
        return state, readiness

    @cached_property
    def _weights(self) -> list[tuple[float, Array]]:
        """Intercept and weights (features,) of each exit."""
        assert self.coefficients is not None  # see `check`
        return [(first, np.array(others)) for first, *others in self.coefficients]

    def observe(self, seen: History, logits: Array) -> tuple[History, Array]:
        """The history after this exit, and the features (..., features) that the estimate is made from.

        Several labels have one estimate, of the least certain: their features are (examples, 1, features).
        """
        # an exit that gives NaN or infinity is undecided
        logits = np.where(finite_rows(logits)[..., None], logits, 0)
        number = logits.shape[-1] == 1
        values = logits.astype(np.float64) if number else log_odds(logits)
        previous = seen.last if seen.exits else values
        exits, total, prediction = seen.exits + 1, seen.total + values, logits.argmax(-1)
        low, high = np.minimum(seen.low, values), np.maximum(seen.high, values)
        if number:
            agrees = (np.abs(values - previous)[..., 0] <= self.tolerance) & bool(seen.exits)
            history = self._distances(values - previous, values - total / exits, high - low)
        else:
            agrees = prediction == seen.prediction
            every = np.stack([values, previous, total / exits, low, high], axis=-2)  # (..., 5, classes)
            predicted = np.repeat(prediction[..., None, None], 5, axis=-2)
            history = np.take_along_axis(every, predicted, -1)[..., 0]
        run = (seen.run + 1) * agrees
        features: Array = np.concatenate([history, run[..., None]], axis=-1)
        if logits.ndim > 2 and logits.shape[1] > 1:
            features = features.min(1, keepdims=True)
        return History(values, total, low, high, prediction, run, exits), features

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
