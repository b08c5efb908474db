"""Texts in, predictions out; with adapters for scikit-learn and transformers pipelines."""

from offramp.classifier.classifier import Classifier
from offramp.classifier.prediction import Prediction

__all__ = ["Classifier", "Prediction"]
