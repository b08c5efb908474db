import warnings
from typing import Any

import numpy as np
import pytest
import seqeval.metrics
from hypothesis import given
from hypothesis import strategies as st

from offramp.data.metrics import METRICS, check_metrics, compute
from offramp.errors import UnknownName
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from offramp.tags import TagScheme

CLASS_METRICS = ["mcc", "acc", "f1", "acc_and_f1", "macro_f1", "micro_f1"]
CORRELATIONS = ["pearson", "spearmanr", "corr"]


def test_class_metrics_of_a_hand_counted_confusion_matrix() -> None:
    labels = [1] * 6 + [0] * 4
    predictions = [1] * 5 + [0] + [1] * 2 + [0] * 2  # true +, false -, false +, true -
    found = compute(CLASS_METRICS, labels, predictions)
    f1_of_one, f1_of_zero = 10 / 13, 4 / 7
    assert found["acc"] == pytest.approx(0.7)
    assert found["f1"] == pytest.approx(f1_of_one)
    assert found["acc_and_f1"] == pytest.approx((0.7 + f1_of_one) / 2)
    assert found["mcc"] == pytest.approx((5 * 2 - 2 * 1) / np.sqrt(7 * 6 * 4 * 3))
    assert found["macro_f1"] == pytest.approx((f1_of_one + f1_of_zero) / 2)
    assert found["micro_f1"] == pytest.approx(0.7)


def test_correlations_of_hand_computed_numbers() -> None:
    found = compute(CORRELATIONS, [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 8.0])
    assert found["pearson"] == pytest.approx(10 / np.sqrt(5 * 29))
    assert found["spearmanr"] == pytest.approx(0.8)  # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)
    assert found["corr"] == pytest.approx((found["pearson"] + found["spearmanr"]) / 2)


def test_multi_label_metrics_average_over_labels_or_decisions() -> None:
    labels = [[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]]
    predictions = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    found = compute(["acc", "macro_f1", "micro_f1"], labels, predictions)
    assert found["acc"] == pytest.approx(2 / 4)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found["micro_f1"] == pytest.approx(2 * 3 / (2 * 3 + 0 + 2))


@pytest.mark.parametrize("labels", [[0, 1, 1], [0, 0, 0]])
@pytest.mark.parametrize("name", ["mcc", "f1", *CORRELATIONS])
def test_an_undefined_metric_is_zero_without_a_warning(name: str, labels: list[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compute([name], labels, [0, 0, 0]) == {name: 0.0}


@pytest.mark.parametrize("name", CORRELATIONS)
def test_one_example_has_no_correlation(name: str) -> None:
    assert compute([name], [1.0], [2.0]) == {name: 0.0}


TAGS = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"]


@pytest.mark.parametrize("tags", [TAGS, [tag for tag in TAGS if tag[0] in "OBI"]], ids=["BIOES", "BIO"])
@given(data=st.data())
def test_entity_f1_is_that_of_seqeval(tags: list[str], data: Any) -> None:
    """On any sequences of tags, also those that the scheme does not allow."""
    words = st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), min_size=1, max_size=12)
    texts = data.draw(st.lists(words, min_size=1, max_size=5))
    expected, found = ([[pair[side] for pair in text] for text in texts] for side in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about scores of nothing
        score = seqeval.metrics.f1_score(expected, found)
    begins = np.array([place == 0 for text in texts for place in range(len(text))])
    flat = [np.array([tags.index(tag) for text in side for tag in text]) for side in (expected, found)]
    rows = [TagScheme(tags).spans(each, begins) for each in flat]
    assert compute(["entity_f1"], *rows)["entity_f1"] == pytest.approx(score)


def test_perfect_predictions_score_one_in_every_metric() -> None:
    of_texts = [name for name in METRICS if name != "entity_f1"]
    assert compute(of_texts, [0, 1, 1, 0], [0, 1, 1, 0]) == pytest.approx(dict.fromkeys(of_texts, 1.0))


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("acc", REGRESSION),
        ("mcc", MULTI_LABEL),
        ("pearson", MULTI_LABEL),
        ("corr", SINGLE_LABEL),
    ],
)
def test_a_metric_for_another_problem_type_is_an_error_with_the_suitable_ones(
    metric: str, problem: Problem
) -> None:
    message = f"{metric} is not a metric for {problem}; choose from {problem.metrics[0]}"
    with pytest.raises(UnknownName, match=message):
        check_metrics([metric], problem, 2)


def test_an_unknown_metric_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match=r"'rouge'; available: mcc, acc"):
        compute(["acc", "rouge"], [0], [0])
