"""Metrics from counts by class, for many sets of answers at once.

A sweep with bootstrap scores 100,000 of them, and scikit-learn takes milliseconds for each. Same names and same
numbers as `tasks.metrics`, which a test holds against each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Counts:
    """How often each class was the label, was the answer, and was both: (..., classes). Scores are (...)."""

    label: Array
    answer: Array
    both: Array

    @property
    def examples(self) -> Array:
        return np.asarray(self.label.sum(-1))


def acc(counts: Counts) -> Array:
    return share(counts.both.sum(-1), counts.examples)


def f1(counts: Counts) -> Array:
    return f1_of_each(counts)[..., 1]


def acc_and_f1(counts: Counts) -> Array:
    return (acc(counts) + f1(counts)) / 2


def macro_f1(counts: Counts) -> Array:
    occurs = (counts.label + counts.answer) > 0
    return share((f1_of_each(counts) * occurs).sum(-1), occurs.sum(-1))


def mcc(counts: Counts) -> Array:
    """The correlation of label and answer, with C classes as in Gorodkin 2004."""
    examples = counts.examples[..., None]
    # shares, as products of whole counts would overflow
    label, answer, both = (share(each, examples) for each in (counts.label, counts.answer, counts.both))
    covariance = both.sum(-1) - (label * answer).sum(-1)
    spread = (label * (1 - label)).sum(-1) * (answer * (1 - answer)).sum(-1)
    return share(covariance, np.sqrt(spread))


def f1_of_each(counts: Counts) -> Array:
    return share(2 * counts.both, counts.label + counts.answer)


def share(part: Array, whole: Array) -> Array:
    """The quotient, and 0 of nothing."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


SCORES: Mapping[str, Callable[[Counts], Array]] = {
    "acc": acc,
    "micro_f1": acc,  # one label an example: every wrong answer is one miss and one false alarm
    "f1": f1,
    "acc_and_f1": acc_and_f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
}
