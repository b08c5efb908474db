"""Model folders, saved or exported: find and read them, load them, store a policy in them.

config.json        backbone, exits, head, labels and policy; in every model folder (`ModelInfo`)
stages.json        the ONNX graphs of an exported model (`Manifest`)
README.md          the model card, written from the other files (`card.py`)
training_rows.npy  hashes of the texts it was trained on (`offramp.row_hashes`)
scores.json        the scores of every exit, from training
curve.json         score and cost of the policy's rule, from calibration
retrofit.json      the comparison with the original model, from a retrofit
reference/         the model whose predictions the certificate protects, if it is not this one at full depth
"""

from offramp.folder.folder import (
    check_reachable,
    copy_model,
    find_model,
    is_exported,
    load_model,
    load_tokenizer,
    megabytes,
    push_model,
)
from offramp.folder.manifest import Manifest, SavedTokenizer

__all__ = [
    "Manifest",
    "SavedTokenizer",
    "check_reachable",
    "copy_model",
    "find_model",
    "is_exported",
    "load_model",
    "load_tokenizer",
    "megabytes",
    "push_model",
]
