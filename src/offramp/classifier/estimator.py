"""A classifier as a fitted scikit-learn estimator, for evaluation code that is written for those."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from offramp.classifier.classifier import Classifier
from offramp.classifier.prediction import probabilities
from offramp.errors import BadOption, NotFinite
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, REGRESSION
from offramp.stages import Array


def estimator(
    classifier: Classifier, policy: Policy | str | None = None, classes: Sequence[Any] | None = None
) -> "ExitEstimator":
    """The estimator for the classifier's kind of problem."""
    labels = classifier.stages.labels
    if classes is not None and len(classes) != len(labels):
        raise BadOption(f"{len(classes)} classes for {len(labels)} labels: {', '.join(labels)}.")
    kinds = {REGRESSION: ExitRegressor, MULTI_LABEL: ExitMultiLabelClassifier}
    kind = kinds.get(classifier.stages.problem_type, ExitClassifier)
    return kind(classifier, policy, classes)


class ExitEstimator(BaseEstimator):  # type: ignore[misc]
    """Trained already: fitting changes nothing, and a clone is the same object."""

    def __init__(
        self, classifier: Classifier, policy: Policy | str | None = None, classes: Sequence[Any] | None = None
    ) -> None:
        self.classifier = classifier
        self.policy = policy
        self.classes = classes
        self.classes_ = np.array(classifier.stages.labels if classes is None else classes)

    def fit(self, texts: Any, labels: Any = None) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def answers(self, texts: Any) -> Array:
        """(texts, labels) logits, all finite."""
        answers = self.classifier.decide(texts, self.policy).answers
        broken = np.flatnonzero(~np.isfinite(answers.sum(-1)))
        if len(broken):
            raise NotFinite(f"the model gave NaN or infinity for item {', '.join(map(str, broken[:5]))}.")
        return answers


class ExitClassifier(ClassifierMixin, ExitEstimator):  # type: ignore[misc]
    """One label out of several."""

    def predict(self, texts: Any) -> Array:
        """(texts,)"""
        chosen: Array = self.classes_[self.answers(texts).argmax(-1)]
        return chosen

    def predict_proba(self, texts: Any) -> Array:
        """(texts, classes)"""
        return probabilities(self.answers(texts), self.classifier.stages.problem_type)


class ExitMultiLabelClassifier(ExitClassifier):
    """Any number of labels: predictions are 0/1 with a column for each."""

    def predict(self, texts: Any) -> Array:
        """(texts, classes)"""
        return (self.predict_proba(texts) > 0.5).astype(int)


class ExitRegressor(RegressorMixin, ExitEstimator):  # type: ignore[misc]
    """A number."""

    def predict(self, texts: Any) -> Array:
        """(texts,)"""
        return self.answers(texts)[:, 0]
