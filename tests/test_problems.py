"""Problems: what a model's outputs mean."""

import copy
import json
import pickle

import numpy as np
import pytest

from offramp.errors import UnknownName
from offramp.problems import (
    MULTI_LABEL,
    PROBLEMS,
    REGRESSION,
    SINGLE_LABEL,
    Problem,
    problem_named,
    problem_of,
)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=str)
def test_a_problem_survives_json_pickle_and_copies(problem: Problem) -> None:
    assert problem_named(json.loads(json.dumps(problem))) is problem
    for again in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):  # noqa: S301
        assert again == problem
        assert type(again) is type(problem)


def test_a_model_whose_config_names_no_problem_is_a_regression_if_it_has_one_output() -> None:
    assert problem_of(1, None) is REGRESSION
    assert problem_of(2, None) is SINGLE_LABEL
    assert problem_of(1, "multi_label_classification") is MULTI_LABEL


def test_an_unknown_problem_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(
        UnknownName, match=r"'ranking' is not one of single_label_classification, multi_label"
    ):
        problem_named("ranking")


def test_classes_are_the_same_if_equal() -> None:
    predictions = SINGLE_LABEL.decode(np.array([[0.1, 2.0, 1.0], [3.0, 2.0, 1.0]]))
    assert predictions.tolist() == [1, 0]
    assert SINGLE_LABEL.agree(predictions, np.array([1, 2])).tolist() == [True, False]


def test_an_example_with_several_labels_agrees_only_if_all_of_them_do() -> None:
    predictions, reference = (
        MULTI_LABEL.decode(np.array([[1.0, -1.0], [1.0, 1.0]])),
        np.array([[1, 0], [1, 0]]),
    )
    assert MULTI_LABEL.same(predictions, reference).tolist() == [[True, True], [True, False]]
    assert MULTI_LABEL.agree(predictions, reference).tolist() == [True, False]


def test_numbers_are_the_same_within_the_tolerance_and_nan_never_is() -> None:
    predictions = REGRESSION.decode(np.array([[1.0], [1.5], [np.nan]]))
    reference = np.array([1.0, 1.25, np.nan])
    assert REGRESSION.agree(predictions, reference).tolist() == [True, False, False]
    assert REGRESSION.agree(predictions, reference, tolerance=0.25).tolist() == [True, True, False]
