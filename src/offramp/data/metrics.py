"""Metrics by their names in GLUE's scripts, computed by scikit-learn and scipy, which are imported on first use.

Predictions are class indices, numbers (regression), rows of 0 and 1 (multi-label) or tables of spans (taggers). For
every metric higher is better, and a metric that is undefined (such as a correlation with a constant) is 0.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import UnknownName
from offramp.problems import SINGLE_LABEL, Array, Problem
from offramp.wording import did_you_mean

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


def score_logits(
    names: Sequence[str], labels: ArrayLike | None, logits: Array, problem: Problem
) -> dict[str, float]:
    """The named metrics of the predictions that logits stand for; empty without labels."""
    return {} if labels is None else compute(names, labels, problem.decode(logits))


def check_known(names: Sequence[str]) -> None:
    for name in names:
        if name not in METRICS:
            raise UnknownName(f"no metric named {did_you_mean(name, METRICS)}")


def check_metrics(names: Sequence[str], problem: Problem, classes: int) -> None:
    """Raise an error for a metric that is unknown, or that this problem type or number of classes does not have."""
    check_known(names)
    unsuitable = [name for name in names if name not in problem.metrics]
    if unsuitable:
        raise UnknownName(
            f"{unsuitable[0]} is not a metric for {problem}; choose from {', '.join(problem.metrics)}"
        )
    binary = [name for name in names if name in ("f1", "acc_and_f1")]
    if binary and (problem, classes) != (SINGLE_LABEL, 2):
        raise UnknownName(f"{binary[0]} is for binary classification; choose macro_f1 or micro_f1")


def sklearn_metric(name: str, **options: Any) -> Metric:
    def metric(labels: Array, predictions: Array) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(labels, predictions, **options))

    return metric


def correlation(name: str) -> Metric:
    def metric(labels: Array, predictions: Array) -> float:
        from scipy import stats

        return float(getattr(stats, name)(labels, predictions).statistic) if len(labels) > 1 else 0.0

    return metric


def mean_of(*names: str) -> Metric:
    return lambda labels, predictions: float(np.mean([*compute(names, labels, predictions).values()]))


def entity_f1(labels: Array, predictions: Array) -> float:
    """The F1 of spans, each a row that says where it is and what: only the same row is correct. As in seqeval."""
    expected, predicted = ({*map(tuple, rows.tolist())} for rows in (labels, predictions))
    return 2 * len(expected & predicted) / max(1, len(expected) + len(predicted))


METRICS: Mapping[str, Metric] = {
    "mcc": sklearn_metric("matthews_corrcoef"),
    "acc": sklearn_metric("accuracy_score"),  # for multi-label, of rows that are correct in every label
    "f1": sklearn_metric("f1_score", average="binary", zero_division=0.0),  # of class 1
    "acc_and_f1": mean_of("acc", "f1"),  # GLUE's summary for MRPC and QQP
    "pearson": correlation("pearsonr"),
    "spearmanr": correlation("spearmanr"),
    "corr": mean_of("pearson", "spearmanr"),  # GLUE's summary for STS-B
    "macro_f1": sklearn_metric("f1_score", average="macro", zero_division=0.0),
    "micro_f1": sklearn_metric("f1_score", average="micro", zero_division=0.0),
    "entity_f1": entity_f1,
}
