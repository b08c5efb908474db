"""What every rule shares: the contract, the records that carry its state, and the numerics of logits.

A rule is a fold over exits. It sees the logits of one exit at a time and says how ready each example is to
leave; a `Policy` compares that readiness with a threshold. All arithmetic is in float64.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Shape = int | tuple[int, ...]

ALWAYS_WRITTEN = {"written": "always"}
"""Metadata of an option that a policy's text form shows even at its default."""


class Criterion:
    """A rule for leaving. Rules are frozen dataclasses whose fields are the rule's options.

    *Shapes*: `logits` (..., classes), where ... is (examples,) or (examples, labels); readiness (...). In a
    multi-label problem every label is a problem of two classes of its own.
    """

    reads: ClassVar[str] = "logits"
    """What `step` is fed: "logits", "gate" (the exit's learned score) or "layer" (its number, from 1). A rule
    that says "nothing" is fed the logits and does not look."""
    sign: ClassVar[int] = 1
    """-1 where a person's threshold is an upper bound, as in "entropy below 0.3"."""
    strict: ClassVar[bool] = True
    """Readiness must pass the threshold. False for rules that count exits: there reaching it is enough, and a
    threshold of 0 means never."""
    bare: ClassVar[bool] = False
    """Takes no threshold."""
    regression: ClassVar[bool] = False
    """Can decide for a single real-valued output."""

    def start(self, examples: Shape) -> Any:
        """The state before the first exit; rules that remember something override this."""
        return Rows()

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        """The state after this exit, and the readiness to leave here, which grows with willingness."""
        raise NotImplementedError

    def answer(self, state: Any, logits: Array) -> Array:
        """The logits that an example leaving here answers with; `state` is the one after this exit."""
        return logits

    def level(self, threshold: ArrayLike) -> Array:
        """A threshold in a person's units as a level of readiness."""
        value = np.asarray(threshold, np.float64)
        return self.sign * value if self.strict else np.where(value > 0, value, np.inf)


@dataclass(frozen=True)
class Rows:
    """A record of arrays with one row per example. `record[rows]` keeps some: a mask, indices or a slice."""

    def __getitem__(self, rows: Any) -> Self:
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})


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
