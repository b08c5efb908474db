"""Metrics of counts against scikit-learn's metrics of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp.curves.count_metrics import SCORES, Counts
from offramp.tasks.metrics import compute

PAIRS = st.integers(2, 4).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(
            st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=30
        ),
    )
)


def counts_of(table: np.ndarray) -> Counts:
    """Of a table (..., labels, answers)."""
    return Counts(table.sum(-1), table.sum(-2), np.diagonal(table, axis1=-2, axis2=-1))


@pytest.mark.parametrize("name", SCORES)
@given(drawn=PAIRS)
def test_metrics_of_counts_are_those_of_rows(name: str, drawn: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = drawn
    if "f1" in name and name not in ("macro_f1", "micro_f1"):
        classes, pairs = 2, [(label % 2, answer % 2) for label, answer in pairs]
    labels, answers = np.array(pairs).T
    table = np.bincount(labels * classes + answers, minlength=classes**2).reshape(classes, classes)
    assert SCORES[name](counts_of(table)) == pytest.approx(compute([name], labels, answers)[name], abs=1e-12)


def test_many_tables_are_scored_at_once() -> None:
    tables = np.array([[[3, 1], [0, 4]], [[1, 0], [2, 0]]])
    assert SCORES["acc"](counts_of(tables)).tolist() == [7 / 8, 1 / 3]


def test_the_correlation_of_a_million_examples_does_not_overflow() -> None:
    table = np.array([[4_000_000, 1_000_000], [1_000_000, 4_000_000]])
    assert SCORES["mcc"](counts_of(table)) == pytest.approx(0.6)
