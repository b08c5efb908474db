"""Texts in, predictions out, and traces; with adapters for scikit-learn and transformers pipelines."""

from offramp.inference.classifier import Classifier, Prediction
from offramp.inference.runner import Runner

__all__ = ["Classifier", "Prediction", "Runner"]
