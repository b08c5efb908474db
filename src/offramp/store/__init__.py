"""Model folders, saved or exported: find and read them, load them, store a policy in them.

config.json      backbone, exits, head, labels and policy; in every model folder (`ModelInfo`)
stages.json      the ONNX graphs of an exported model (`Manifest`)
README.md        the model card, written from the other files (`card.py`)
scores.json      the scores of every exit, from training
curve.json       score and cost of the policy's rule, from calibration
"""

from offramp.store.card import store_policy, write_card
from offramp.store.folder import ModelInfo, find_model, is_exported, is_path, load_model, load_tokenizer
from offramp.store.manifest import Manifest, SavedTokenizer

__all__ = [
    "Manifest",
    "ModelInfo",
    "SavedTokenizer",
    "find_model",
    "is_exported",
    "is_path",
    "load_model",
    "load_tokenizer",
    "store_policy",
    "write_card",
]
