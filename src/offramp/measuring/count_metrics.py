"""Metrics computed from counts by class, for many sets of predictions at once.

A sweep with bootstrap scores 100,000 sets, and scikit-learn takes milliseconds for each. Names and values are
those of `tasks.metrics`, which the tests check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from offramp.problems import Array


@dataclass(frozen=True)
class Counts:
    """How often each class was the label, the prediction, and both: (..., classes). Scores are (...)."""

    label: Array
    predicted: Array
    both: Array

    @property
    def examples(self) -> Array:
        return np.asarray(self.label.sum(-1))


def acc(counts: Counts) -> Array:
    return divide(counts.both.sum(-1), counts.examples)


def f1(counts: Counts) -> Array:
    return f1_by_class(counts)[..., 1]


def acc_and_f1(counts: Counts) -> Array:
    return (acc(counts) + f1(counts)) / 2


def macro_f1(counts: Counts) -> Array:
    occurs = (counts.label + counts.predicted) > 0
    return divide((f1_by_class(counts) * occurs).sum(-1), occurs.sum(-1))


def mcc(counts: Counts) -> Array:
    """Matthews' correlation coefficient, for any number of classes (Gorodkin 2004)."""
    examples = counts.examples[..., None]
    # fractions, because products of integer counts would overflow
    label, predicted, both = (
        divide(each, examples) for each in (counts.label, counts.predicted, counts.both)
    )
    covariance = both.sum(-1) - (label * predicted).sum(-1)
    spread = (label * (1 - label)).sum(-1) * (predicted * (1 - predicted)).sum(-1)
    return divide(covariance, np.sqrt(spread))


def f1_by_class(counts: Counts) -> Array:
    return divide(2 * counts.both, counts.label + counts.predicted)


def divide(part: Array, whole: Array) -> Array:
    """The quotient, 0 where the divisor is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


COUNT_METRICS: Mapping[str, Callable[[Counts], Array]] = {
    "acc": acc,
    "micro_f1": acc,  # with one label per example, each wrong prediction is one false negative and one false positive
    "f1": f1,
    "acc_and_f1": acc_and_f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
}
