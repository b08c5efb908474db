"""Losses against values computed by hand."""

import numpy as np
import pytest

from offramp.guarantees.losses import LOSSES, Reference
from offramp.problems import MULTI_LABEL, REGRESSION


def values(risk: str, predictions: list, reference: Reference) -> list:
    return LOSSES[risk].values(np.array(predictions), reference).tolist()


def test_a_prediction_has_changed_if_it_is_not_that_of_the_reference() -> None:
    classes = Reference(np.array(["spam", "ham", "ham"]))
    assert values("changed", ["spam", "spam", "ham"], classes) == [0, 1, 0]
    labels = Reference(np.array([[1, 0], [1, 0]]), problem=MULTI_LABEL)
    assert values("changed", [[1, 0], [1, 1]], labels) == [0, 1]
    numbers = Reference(np.array([1.0, 1.0]), problem=REGRESSION, tolerance=0.5)
    assert values("changed", [1.5, 1.6], numbers) == [0, 1]


def test_exits_are_compared_all_at_once() -> None:
    assert values("changed", [[0, 1], [1, 1]], Reference(np.array([0, 1]))) == [[0, 0], [1, 0]]


def test_accuracy_loses_only_what_the_reference_had_right() -> None:
    reference = Reference(np.array([0, 0, 1, 1]), labels=np.array([0, 1, 1, 0]))
    assert values("accuracy", [1, 1, 1, 1], reference) == [1, 0, 0, 0]


def test_many_labels_lose_the_share_that_the_reference_had_right() -> None:
    truth = np.array([[1, 1, 0, 0]])
    reference = Reference(np.array([[1, 1, 0, 1]]), labels=truth, problem=MULTI_LABEL)
    assert values("label_accuracy", [[0, 1, 1, 1]], reference) == [0.5]


def test_losses_of_rankings() -> None:
    reference = Reference(np.array([[0, 1, 2, 3]]), sizes=np.array([4]), top_k=2)
    order = [[1, 2, 0, 3]]
    assert values("overlap", order, reference) == [0.5]
    assert values("overlap", [[0, 1, 2, 3]], reference) == values("ndcg", [[0, 1, 2, 3]], reference) == [0]
    # gains 2 and 1; the best is second, and the second is missed
    expected = 1 - (2 / np.log2(3)) / (2 + 1 / np.log2(3))
    assert values("ndcg", order, reference) == pytest.approx([expected])
    assert values("overlap", [[2, 3, 0, 1]], reference) == values("ndcg", [[2, 3, 0, 1]], reference) == [1]


def test_a_list_shorter_than_k_loses_nothing_from_the_overlap() -> None:
    reference = Reference(np.array([[0, 1, 2]]), sizes=np.array([2]), top_k=5)
    assert values("overlap", [[1, 0, 2]], reference) == [0]


def test_yes_and_no_are_lost_each_in_its_own_way() -> None:
    reference = Reference(np.array([1, 1, 0, 0]))
    assert values("missed", [1, 0, 1, 0], reference) == values("missed_of_all", [1, 0, 1, 0], reference)
    assert values("missed", [1, 0, 1, 0], reference) == [0, 1, 0, 0]
    assert values("false_alarm", [1, 0, 1, 0], reference) == [0, 0, 1, 0]
    among = {risk: LOSSES[risk].among for risk in ("missed", "false_alarm")}
    assert {risk: choose(reference).tolist() for risk, choose in among.items() if choose} == {
        "missed": [True, True, False, False],
        "false_alarm": [False, False, True, True],
    }


def test_of_several_labels_one_that_is_missed_is_enough() -> None:
    reference = Reference(np.array([[1, 1], [1, 0], [0, 0]]), problem=MULTI_LABEL)
    assert values("missed", [[1, 0], [1, 1], [0, 0]], reference) == [1, 0, 0]
    assert values("false_alarm", [[1, 0], [1, 1], [0, 0]], reference) == [0, 1, 0]
    assert LOSSES["missed"].among is not None
    assert LOSSES["missed"].among(reference).tolist() == [True, True, False]


def test_accuracy_gained_makes_up_for_accuracy_lost() -> None:
    reference = Reference(np.array([0, 0, 1, 1]), labels=np.array([0, 1, 1, 0]))
    assert values("accuracy_drop", [1, 1, 1, 1], reference) == [1, -1, 0, 0]
    many = Reference(np.array([[1, 1, 0, 1]]), labels=np.array([[1, 1, 0, 0]]), problem=MULTI_LABEL)
    assert values("accuracy_drop", [[0, 1, 1, 0]], many) == [0.25]


def test_a_score_moves_if_one_of_a_row_moves_by_more_than_the_tolerance() -> None:
    reference = Reference(np.array([[0.9, 0.1], [0.5, 0.5]]), tolerance=0.25)
    assert values("score", [[0.8, 0.2], [0.1, 0.9]], reference) == [0, 1]
    assert values("score", [0.5, 1.0], Reference(np.array([0.5, 0.5]), tolerance=0.25)) == [0, 1]
