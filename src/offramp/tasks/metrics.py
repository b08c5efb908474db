"""Metrics by the names that GLUE and its scripts use, computed by scikit-learn and scipy, which are
loaded when the first is computed.

Answers are class indices (one label), numbers (regression) or rows of 0 and 1 (many labels). Every metric
grows with quality, and answers that leave it undefined (all the same, a correlation of nothing) count as 0.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offramp.errors import UnknownName
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL

Array: TypeAlias = NDArray[Any]
Metric: TypeAlias = Callable[[Array, Array], float]


def compute(names: Sequence[str], labels: ArrayLike, answers: ArrayLike) -> dict[str, float]:
    """The named metrics of answers against labels.

    >>> compute(["acc", "f1"], labels=[0, 1, 1, 1], answers=[0, 1, 1, 0])
    {'acc': 0.75, 'f1': 0.8}
    """
    check_known(names)
    rows = np.asarray(labels), np.asarray(answers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the undefined cases are announced, and count as 0 here
        return {name: float(np.nan_to_num(METRICS[name](*rows))) for name in names}


def check_known(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise UnknownName(f"no metric named {', '.join(unknown)}; have {', '.join(METRICS)}")


def check_metrics(names: Sequence[str], problem_type: str, classes: int) -> None:
    """Metrics that exist and fit the answers, and none that is for two classes where there are not two."""
    check_known(names)
    unfit = [name for name in names if name not in FITTING[problem_type]]
    if unfit:
        raise UnknownName(
            f"{unfit[0]} does not score {problem_type}; take {', '.join(FITTING[problem_type])}"
        )
    binary = [name for name in names if name in ("f1", "acc_and_f1")]
    if binary and (problem_type, classes) != (SINGLE_LABEL, 2):
        raise UnknownName(
            f"{binary[0]} is for two classes of which an example has one; take macro_f1 or micro_f1"
        )


def answers(logits: Array, problem_type: str) -> Array:
    """Logits (..., outputs) as the answers that metrics take: classes, numbers, or rows of 0 and 1.

    >>> answers(np.array([[0.2, 0.9], [1.5, -1.0]]), "multi_label_classification").tolist()
    [[1, 1], [1, 0]]
    """
    given: Array = logits[..., 0]
    if problem_type == SINGLE_LABEL:
        given = logits.argmax(-1)
    elif problem_type == MULTI_LABEL:
        given = (logits > 0).astype(np.int8)
    return given


def mcc(labels: Array, answers: Array) -> float:
    """Matthews' correlation coefficient."""
    from sklearn import metrics

    return float(metrics.matthews_corrcoef(labels, answers))


def acc(labels: Array, answers: Array) -> float:
    """The share of right answers; with many labels, of rows that are right in every label."""
    from sklearn import metrics

    return float(metrics.accuracy_score(labels, answers))


def f1(labels: Array, answers: Array) -> float:
    """F1 of class 1, for two classes."""
    return _f1("binary", labels, answers)


def macro_f1(labels: Array, answers: Array) -> float:
    """The mean of the F1 of each class that occurs; with many labels, of each label."""
    return _f1("macro", labels, answers)


def micro_f1(labels: Array, answers: Array) -> float:
    """F1 over all decisions at once; with one label an example, the same as acc."""
    return _f1("micro", labels, answers)


def _f1(average: str, labels: Array, answers: Array) -> float:
    from sklearn import metrics

    return float(metrics.f1_score(labels, answers, average=average, zero_division=0.0))


def acc_and_f1(labels: Array, answers: Array) -> float:
    """The mean of acc and f1, as GLUE sums up MRPC and QQP."""
    return (acc(labels, answers) + f1(labels, answers)) / 2


def pearson(labels: Array, answers: Array) -> float:
    """Pearson's correlation."""
    from scipy import stats

    return _correlation(stats.pearsonr, labels, answers)


def spearmanr(labels: Array, answers: Array) -> float:
    """Spearman's rank correlation."""
    from scipy import stats

    return _correlation(stats.spearmanr, labels, answers)


def _correlation(measure: Callable[..., Any], labels: Array, answers: Array) -> float:
    if len(labels) < 2:
        return 0.0
    return float(np.nan_to_num(measure(labels, answers).statistic))


def corr(labels: Array, answers: Array) -> float:
    """The mean of pearson and spearmanr, as GLUE sums up STS-B."""
    return (pearson(labels, answers) + spearmanr(labels, answers)) / 2


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

FITTING = {
    SINGLE_LABEL: ("mcc", "acc", "f1", "acc_and_f1", "macro_f1", "micro_f1"),
    MULTI_LABEL: ("acc", "macro_f1", "micro_f1"),
    REGRESSION: ("pearson", "spearmanr", "corr"),
}
"""Which metrics score which kind of answer."""
