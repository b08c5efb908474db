"""The interface of a rule, and the record that holds its state.

A rule is a fold over exits. It reads the logits of one exit at a time and returns how ready each example is to
exit; a `Policy` compares that readiness with a threshold.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from offramp.numerics import Array

Shape = int | tuple[int, ...]

ALWAYS_WRITTEN = {"written": "always"}
"""Metadata of an option that a policy's text form shows even at its default."""
FITTED = {"written": "never"}
"""Metadata of an option that is fitted to data: part of a policy's JSON form, not of its text form."""

COUNT = float(np.finfo(np.float64).max)
"""The `highest` readiness of a rule that counts exits: any finite number."""
DIGITS = 6
"""Significant digits of a fitted coefficient: more would only lengthen the saved policy."""


class Rule:
    """A rule for exiting early. Rules are frozen dataclasses whose fields are the rule's options.

    *Shapes*: `logits` (..., classes), where ... is (examples,) or (examples, labels); readiness (...). A
    multi-label problem is one two-class problem per label.
    """

    reads: ClassVar[str] = "logits"
    """The input of `step`: "logits", "gate" (the exit's learned score), "layer" (its number) or "nothing" (it is
    passed the logits and ignores them)."""
    sign: ClassVar[int] = 1
    """-1 where the threshold is an upper bound, as in "entropy below 0.3"."""
    highest: ClassVar[float] = np.inf
    """The highest readiness there is; a threshold beyond it would mean never."""
    counts_exits: ClassVar[bool] = False
    """True if readiness counts exits; then `>=` the threshold is enough to exit, and a threshold of 0 means never."""
    takes_threshold: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False
    """True for the oracle, which reads labels: it bounds curves but cannot be deployed."""
    probability: ClassVar[bool] = False
    """Whether readiness is a probability that is not computed from one exit's logits alone."""
    is_fitted: ClassVar[bool] = True
    """False while a rule that learns has not seen a trace."""
    regression: ClassVar[bool] = False
    """Whether it works for a single real-valued output."""

    def check(self, exits: int) -> None:
        """Raise `Incompatible` if the rule cannot run on this many exits."""

    def start(self, examples: Shape) -> Any:
        """The state before the first exit; rules with memory override this."""
        return PerExample()

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        """The state after this exit, and the readiness to exit here: the higher, the readier."""
        raise NotImplementedError

    @property
    def keeps_logits(self) -> bool:
        """Whether an example gets the logits of the exit that it takes."""
        return type(self).output is Rule.output

    def output(self, state: Any, logits: Array) -> Array:
        """The logits returned for an example that exits here; `state` is the one after this exit."""
        return logits

    def level(self, threshold: ArrayLike) -> Array:
        """The readiness that a threshold in the rule's own units stands for; NaN is never reached."""
        value: Any = np.multiply(threshold, 1.0)
        return np.where(value <= 0, np.inf, value) if self.counts_exits else self.sign * value


@dataclass(frozen=True)
class PerExample:
    """A record of arrays with one row per example, and of numbers that all examples share.

    `record[rows]` keeps some examples: a mask, indices or a slice.
    """

    def __getitem__(self, rows: Any) -> Self:
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **{name: value[rows] for name, value in arrays.items()})


def fit_exit(features: Array, same: Array) -> tuple[float, ...]:
    """Intercept and weights of one exit; if only one outcome occurs, a constant that allows for the other."""
    from sklearn.linear_model import LogisticRegression

    finite = np.isfinite(features).all(-1)
    features, same = features[finite], same[finite]
    if same.all() or not same.any():
        hits = int(same.sum())
        constant = np.log((hits + 1) / (len(same) - hits + 1))
        return (round(float(constant), DIGITS), *[0.0] * features.shape[1])
    centre, scale = features.mean(0), features.std(0) + 1e-6  # so that the penalty treats features alike
    model = LogisticRegression(max_iter=1000).fit((features - centre) / scale, same)
    weights = model.coef_[0] / scale
    intercept = model.intercept_[0] - weights @ centre
    return tuple(round(float(value), DIGITS) for value in (intercept, *weights))
