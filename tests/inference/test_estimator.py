"""The classifier in evaluation code written for scikit-learn."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score, get_scorer, log_loss
from sklearn.model_selection import cross_val_predict, cross_val_score
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadOption, NotFinite
from offramp.inference import Classifier, Runner
from offramp.models.exit_model import ExitModel

TEXTS = np.array(["good film", "bad", "", "a b c d e", "z", "good good bad", "q r s", "film", "c a b", "y"])


def test_predictions_are_the_classifiers(classifier: Classifier) -> None:
    estimator, records = classifier.sklearn(), classifier.predict(TEXTS)
    assert estimator.classes_.tolist() == ["red", "green", "blue"]
    assert estimator.predict(TEXTS).tolist() == [record.label for record in records]
    expected = [[*record.probabilities.values()] for record in records]
    np.testing.assert_allclose(estimator.predict_proba(TEXTS), expected, atol=1e-6)
    assert estimator.predict(TEXTS[:0]).shape == (0,)


def test_a_policy_and_other_class_names_can_be_given(classifier: Classifier) -> None:
    estimator = classifier.sklearn("never", classes=[0, 1, 2])
    labels = ["red", "green", "blue"]
    expected = [labels.index(record.label) for record in classifier.predict(TEXTS, policy="never")]
    assert estimator.predict(TEXTS).tolist() == expected
    with pytest.raises(BadOption, match="expected a class for each label"):
        classifier.sklearn(classes=[0, 1])


def test_scorers_and_cross_validation_take_it(classifier: Classifier) -> None:
    estimator, truth = classifier.sklearn(), np.array(["red", "green"] * 5)
    assert is_classifier(estimator)
    score = accuracy_score(truth, estimator.predict(TEXTS))
    assert estimator.score(TEXTS, truth) == score
    assert get_scorer("accuracy")(estimator, TEXTS, truth) == score
    loss = log_loss(truth, estimator.predict_proba(TEXTS)[:, [2, 1, 0]], labels=["blue", "green", "red"])
    assert loss > 0
    assert cross_val_score(estimator, TEXTS, truth, cv=5).mean() == pytest.approx(score)
    assert cross_val_predict(estimator, TEXTS, truth, cv=2).tolist() == estimator.predict(TEXTS).tolist()
    assert clone(estimator) is estimator
    assert estimator.fit(TEXTS, truth) is estimator


def test_multi_labels_are_columns_and_a_regression_is_numbers(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    several = Classifier(
        Runner(make_model(num_labels=3, problem_type="multi_label_classification"), tokenizer)
    )
    chosen = several.sklearn().predict(TEXTS)
    np.testing.assert_array_equal(chosen, several.sklearn().predict_proba(TEXTS) > 0.5)
    assert chosen.shape == (10, 3)
    number = Classifier(Runner(make_model(num_labels=1), tokenizer)).sklearn()
    assert is_regressor(number)
    assert number.predict(TEXTS).shape == (10,)
    assert number.score(TEXTS, number.predict(TEXTS)) == 1.0


def test_nan_is_an_error_that_names_the_items(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(num_labels=2)
    model.heads.classifiers[-1].bias.data.fill_(torch.inf)
    with pytest.raises(NotFinite, match="item 0, 1"):
        Classifier(Runner(model, tokenizer)).sklearn().predict(TEXTS)
