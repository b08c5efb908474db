"""Metrics of many confusion matrices at once.

A sweep with bootstrap has 100,000 of them, and scikit-learn takes milliseconds for each. Same names and same
numbers as `tasks.metrics`, which a test holds against each other.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""Counts (..., classes, classes): how often a label (row) got an answer (column). Scores are (...)."""


def acc(counts: Array) -> Array:
    return share(hits(counts).sum(-1), counts.sum((-1, -2)))


def f1(counts: Array) -> Array:
    return f1_of_each(counts)[..., 1]


def acc_and_f1(counts: Array) -> Array:
    return (acc(counts) + f1(counts)) / 2


def macro_f1(counts: Array) -> Array:
    occurs = (counts.sum(-1) + counts.sum(-2)) > 0
    return share((f1_of_each(counts) * occurs).sum(-1), occurs.sum(-1))


def mcc(counts: Array) -> Array:
    """The correlation of label and answer, with C classes as in Gorodkin 2004."""
    part = share(counts, counts.sum((-1, -2), keepdims=True))  # products of whole counts would overflow
    label, answer = part.sum(-1), part.sum(-2)
    covariance = hits(part).sum(-1) - (label * answer).sum(-1)
    spread = (label * (1 - label)).sum(-1) * (answer * (1 - answer)).sum(-1)
    return share(covariance, np.sqrt(spread))


def hits(counts: Array) -> Array:
    return np.diagonal(counts, axis1=-2, axis2=-1)


def f1_of_each(counts: Array) -> Array:
    return share(2 * hits(counts), counts.sum(-1) + counts.sum(-2))


def share(part: Array, whole: Array) -> Array:
    """The quotient, and 0 of nothing."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


SCORES: Mapping[str, Callable[[Array], Array]] = {
    "acc": acc,
    "micro_f1": acc,  # one label an example: every wrong answer is one miss and one false alarm
    "f1": f1,
    "acc_and_f1": acc_and_f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
}
