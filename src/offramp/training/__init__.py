"""Training: one transformers Trainer run for each phase of a recipe."""

from offramp.training.train import Trained, default_arguments, train

__all__ = ["Trained", "default_arguments", "train"]
