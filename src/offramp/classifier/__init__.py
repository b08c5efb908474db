"""Text in, predictions out; also for evaluation code that expects scikit-learn or a transformers pipeline."""

from offramp.classifier.classifier import Classifier
from offramp.classifier.prediction import Prediction

__all__ = ["Classifier", "Prediction"]
