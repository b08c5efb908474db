"""Training: one transformers Trainer run for each phase of a recipe."""

from offramp.training.run import Trained, default_arguments, train

__all__ = ["Trained", "default_arguments", "train"]
