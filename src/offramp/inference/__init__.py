"""Texts in, predictions out, and traces; with adapters for scikit-learn and transformers pipelines."""

from offramp.inference.classifier import Classifier
from offramp.inference.prediction import Prediction

__all__ = ["Classifier", "Prediction"]
