"""Metrics from counts equal scikit-learn's metrics of predictions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp.data.metrics import compute
from offramp.measuring.scores import COUNT_METRICS, Counts

PAIRS = st.integers(2, 4).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(
            st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=30
        ),
    )
)


def counts_of(table: np.ndarray) -> Counts:
    """From a confusion matrix (..., labels, predictions)."""
    return Counts(table.sum(-1), table.sum(-2), np.diagonal(table, axis1=-2, axis2=-1))


@pytest.mark.parametrize("name", COUNT_METRICS)
@given(drawn=PAIRS)
def test_metrics_from_counts_equal_scikit_learns(name: str, drawn: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = drawn
    if "f1" in name and name not in ("macro_f1", "micro_f1"):
        classes, pairs = 2, [(label % 2, prediction % 2) for label, prediction in pairs]
    labels, predictions = np.array(pairs).T
    table = np.bincount(labels * classes + predictions, minlength=classes**2).reshape(classes, classes)
    expected = compute([name], labels, predictions)[name]
    assert COUNT_METRICS[name](counts_of(table)) == pytest.approx(expected, abs=1e-12)


def test_many_confusion_matrices_are_scored_at_once() -> None:
    tables = np.array([[[3, 1], [0, 4]], [[1, 0], [2, 0]]])
    assert COUNT_METRICS["acc"](counts_of(tables)).tolist() == [7 / 8, 1 / 3]


def test_the_correlation_of_a_million_examples_does_not_overflow() -> None:
    table = np.array([[4_000_000, 1_000_000], [1_000_000, 4_000_000]])
    assert COUNT_METRICS["mcc"](counts_of(table)) == pytest.approx(0.6)
