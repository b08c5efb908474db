"""Metrics by their names in GLUE's scripts, computed by scikit-learn and scipy, which are imported on first use.

Predictions are class indices, numbers (regression) or rows of 0 and 1 (multi-label). For every metric higher is
better, and a metric that is undefined (such as a correlation with a constant) is 0.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import UnknownName
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Array

Metric: TypeAlias = Callable[[Array, Array], float]


def compute(names: Sequence[str], labels: ArrayLike, predictions: ArrayLike) -> dict[str, float]:
    """The named metrics of predictions.

    >>> compute(["acc", "f1"], labels=[0, 1, 1, 1], predictions=[0, 1, 1, 0])
    {'acc': 0.75, 'f1': 0.8}
    """
    check_known(names)
    rows = np.asarray(labels), np.asarray(predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metrics that are undefined, which are 0 here
        return {name: float(np.nan_to_num(METRICS[name](*rows))) for name in names}


def check_known(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise UnknownName(f"no metric named {', '.join(unknown)}; have {', '.join(METRICS)}")


def check_metrics(names: Sequence[str], problem_type: str, classes: int) -> None:
    """Raise an error for a metric that is unknown, or that this problem type or number of classes does not have."""
    check_known(names)
    unsuitable = [name for name in names if name not in SUITABLE[problem_type]]
    if unsuitable:
        raise UnknownName(
            f"{unsuitable[0]} is not a metric for {problem_type}; choose from {', '.join(SUITABLE[problem_type])}"
        )
    binary = [name for name in names if name in ("f1", "acc_and_f1")]
    if binary and (problem_type, classes) != (SINGLE_LABEL, 2):
        raise UnknownName(f"{binary[0]} is for binary classification; choose macro_f1 or micro_f1")


def mcc(labels: Array, predictions: Array) -> float:
    """Matthews' correlation coefficient."""
    from sklearn import metrics

    return float(metrics.matthews_corrcoef(labels, predictions))


def acc(labels: Array, predictions: Array) -> float:
    """The fraction of correct predictions; for multi-label, of rows that are correct in every label."""
    from sklearn import metrics

    return float(metrics.accuracy_score(labels, predictions))


def f1(labels: Array, predictions: Array) -> float:
    """F1 of class 1, for binary classification."""
    return _f1("binary", labels, predictions)


def macro_f1(labels: Array, predictions: Array) -> float:
    """The mean F1 of all classes that occur; for multi-label, of all labels."""
    return _f1("macro", labels, predictions)


def micro_f1(labels: Array, predictions: Array) -> float:
    """F1 over all decisions together; for single-label problems the same as acc."""
    return _f1("micro", labels, predictions)


def _f1(average: str, labels: Array, predictions: Array) -> float:
    from sklearn import metrics

    return float(metrics.f1_score(labels, predictions, average=average, zero_division=0.0))


def acc_and_f1(labels: Array, predictions: Array) -> float:
    """The mean of acc and f1, GLUE's summary for MRPC and QQP."""
    return (acc(labels, predictions) + f1(labels, predictions)) / 2


def pearson(labels: Array, predictions: Array) -> float:
    """Pearson's correlation."""
    from scipy import stats

    return _correlation(stats.pearsonr, labels, predictions)


def spearmanr(labels: Array, predictions: Array) -> float:
    """Spearman's rank correlation."""
    from scipy import stats

    return _correlation(stats.spearmanr, labels, predictions)


def _correlation(measure: Callable[..., Any], labels: Array, predictions: Array) -> float:
    if len(labels) < 2:
        return 0.0
    return float(np.nan_to_num(measure(labels, predictions).statistic))


def corr(labels: Array, predictions: Array) -> float:
    """The mean of pearson and spearmanr, GLUE's summary for STS-B."""
    return (pearson(labels, predictions) + spearmanr(labels, predictions)) / 2


METRICS: Mapping[str, Metric] = {
    "mcc": mcc,
    "acc": acc,
    "f1": f1,
    "acc_and_f1": acc_and_f1,
    "pearson": pearson,
    "spearmanr": spearmanr,
    "corr": corr,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
}

SUITABLE = {
    SINGLE_LABEL: ("mcc", "acc", "f1", "acc_and_f1", "macro_f1", "micro_f1"),
    MULTI_LABEL: ("acc", "macro_f1", "micro_f1"),
    REGRESSION: ("pearson", "spearmanr", "corr"),
}
"""The metrics of each problem type."""
