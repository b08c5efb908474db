"""The numerics of logits (..., classes). All arithmetic is in float64."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def finite_rows(logits: Array) -> Array:
    """(...) False where any of the logits (..., classes) is NaN or infinite."""
    finite: Any = np.isfinite(logits)
    of_rows: Array = finite.all(-1)
    return of_rows


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
    wide: Array = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
        wide -= wide.max(-1, keepdims=True)
    return wide
