"""The interface of a rule, the record that holds its state, and the numerics of logits.

A rule is a fold over exits. It reads the logits of one exit at a time and returns how ready each example is to
leave; a `Policy` compares that readiness with a threshold. All arithmetic is in float64.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from offramp.problems import MULTI_LABEL, Array

Shape = int | tuple[int, ...]

ALWAYS_WRITTEN = {"written": "always"}
"""Metadata of an option that a policy's text form shows even at its default."""


FITTED = {"written": "never"}
"""Metadata of an option that is fitted to data: part of a policy's JSON form, not of its text form."""


COUNT = float(np.finfo(np.float64).max)
"""The `highest` readiness of a rule that counts exits: any finite number."""


class Rule:
    """A rule for leaving. Rules are frozen dataclasses whose fields are the rule's options.

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
    """Whether readiness is a number of exits: it leaves at the threshold, not only above it, and 0 means never."""
    takes_threshold: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False
    """Whether it reads the labels, so that it can bound a curve but never run."""
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
        """The state after this exit, and the readiness to leave here: the higher, the readier."""
        raise NotImplementedError

    def output(self, state: Any, logits: Array) -> Array:
        """The logits returned for an example that leaves here; `state` is the one after this exit."""
        return logits

    def level(self, threshold: ArrayLike) -> Array:
        """The readiness that a threshold, in the rule's own units, stands for."""
        value = np.asarray(threshold, np.float64)
        return np.where(value > 0, value, np.inf) if self.counts_exits else self.sign * value


@dataclass(frozen=True)
class PerExample:
    """A record of arrays with one row per example, and of numbers that all examples share.

    `record[rows]` keeps some examples: a mask, indices or a slice.
    """

    def __getitem__(self, rows: Any) -> Self:
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **{name: value[rows] for name, value in arrays.items()})


def as_choices(logits: Array, problem_type: str | None) -> Array:
    """(examples, labels, classes): one choice among all classes, or absent against present for each label."""
    if problem_type == MULTI_LABEL:
        return np.stack([np.zeros_like(logits), logits], axis=-1)
    return logits[:, None]


def finite_rows(logits: Array) -> Array:
    """(...) False where any of the logits (..., classes) is NaN or infinite."""
    return np.asarray(np.isfinite(logits).all(-1))


def softmax(logits: Array) -> Array:
    """Probabilities, of the shape of the logits. NaN where a row is not finite, without a warning."""
    odds: Array = np.exp(_below_top(logits))
    odds /= odds.sum(-1, keepdims=True)
    return odds


def log_softmax(logits: Array) -> Array:
    """Logarithms of the probabilities, exact also where the probability itself would be 0."""
    below = _below_top(logits)
    below -= np.log(np.exp(below).sum(-1, keepdims=True))
    return below


def entropy(logits: Array) -> Array:
    """Entropy in nats. Both terms are positive, so that saturated logits give almost 0 and never NaN."""
    below = _below_top(logits)
    odds = np.exp(below)
    total = odds.sum(-1)
    with np.errstate(invalid="ignore"):  # 0 * inf
        nats: Array = np.log(total) - np.vecdot(odds, below) / total
    return nats


def _below_top(logits: Array) -> Array:
    wide: Array = np.array(logits, np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
        wide -= wide.max(-1, keepdims=True)
    return wide
