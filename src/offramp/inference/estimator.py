"""A classifier as a fitted scikit-learn estimator, for evaluation code that expects one."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from offramp.errors import BadOption, NotFinite
from offramp.inference.classifier import Classifier
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, REGRESSION, Array


def estimator(
    classifier: Classifier, policy: Policy | str | None = None, classes: Sequence[Any] | None = None
) -> "ExitEstimator":
    """The estimator for the classifier's problem type."""
    labels = classifier.runner.runtime.info.labels
    if classes is not None and len(classes) != len(labels):
        raise BadOption(f"expected a class for each label ({', '.join(labels)}), got {len(classes)}.")
    kinds: dict[str, Any] = {REGRESSION: ExitRegressor, MULTI_LABEL: ExitMultiLabelClassifier}
    kind: type[ExitEstimator] = kinds.get(classifier.runner.runtime.info.problem, ExitClassifier)
    return kind(classifier, policy, classes)


class ExitEstimator(BaseEstimator):  # type: ignore[misc]
    """Already trained: `fit` does nothing, and a clone is the same object."""

    def __init__(
        self, classifier: Classifier, policy: Policy | str | None = None, classes: Sequence[Any] | None = None
    ) -> None:
        self.classifier = classifier
        self.policy = policy
        self.classes = classes
        self.classes_ = np.array(classifier.runner.runtime.info.labels if classes is None else classes)

    def fit(self, texts: Any, labels: Any = None) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def logits(self, texts: Any) -> Array:
        """(texts, labels), all finite."""
        logits = self.classifier.runner.decide(texts, self.policy).logits
        bad = np.flatnonzero(~np.isfinite(logits.sum(-1)))
        if len(bad):
            raise NotFinite(f"the model returned NaN or infinity for item {', '.join(map(str, bad[:5]))}.")
        return logits


class ExitClassifier(ClassifierMixin, ExitEstimator):  # type: ignore[misc]
    def predict(self, texts: Any) -> Array:
        """(texts,)"""
        chosen: Array = self.classes_[self.logits(texts).argmax(-1)]
        return chosen

    def predict_proba(self, texts: Any) -> Array:
        """(texts, classes)"""
        return self.classifier.runner.runtime.info.problem.probabilities(self.logits(texts))


class ExitMultiLabelClassifier(ExitClassifier):
    """Predicts any number of labels: a 0/1 column for each."""

    def predict(self, texts: Any) -> Array:
        """(texts, classes)"""
        return (self.predict_proba(texts) > 0.5).astype(int)


class ExitRegressor(RegressorMixin, ExitEstimator):  # type: ignore[misc]
    def predict(self, texts: Any) -> Array:
        """(texts,)"""
        return self.logits(texts)[:, 0]
