"""Training: one transformers Trainer run for each phase of a recipe."""

from offramp.training.run import Trained, train

__all__ = ["Trained", "train"]
