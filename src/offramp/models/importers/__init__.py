"""Checkpoints of DeeBERT, RomeBERT, PABEE, ELBERT and ElasticBERT -> ExitModel.

Each system has a function in `plans.py` that maps our names of weights to its own, and is recognized by the names in
the checkpoint. Every weight that the model needs must be present. A weight that it does not need is listed in the
result if it is known, and an error if not.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from offramp.errors import CannotLoad
from offramp.files import read_json
from offramp.models.exit_model import list_some
from offramp.models.importers.base import Checkpoint, Imported, ImportPlan, build
from offramp.models.importers.checkpoint_files import read_weights
from offramp.models.importers.plans import deebert, elasticbert, elbert, pabee

SYSTEMS: dict[str, Callable[[Checkpoint], ImportPlan | None]] = {
    "deebert": deebert,
    "pabee": pabee,
    "elbert": elbert,
    "elasticbert": elasticbert,
}


def import_checkpoint(
    folder: str | Path, num_labels: int | None = None, labels: Sequence[str] | None = None
) -> Imported:
    """The model in a folder written by DeeBERT, RomeBERT, PABEE, ELBERT or ElasticBERT.

    The folder has a `config.json` and a `model.safetensors` or `pytorch_model.bin`, whole or in shards. The tokenizer
    is not imported: load it with transformers' `AutoTokenizer`.

        imported = import_checkpoint("sst2-two_stage")
        imported.model.save_pretrained("sst2")
        print(imported.system, imported.dropped)

    Args:
        folder: the checkpoint.
        num_labels: the number of outputs, only for a checkpoint without classifiers (ElasticBERT's pretraining).
        labels: label names; by default those in `config.json`.
    """
    return import_weights(
        read_weights(Path(folder)), read_json(Path(folder) / "config.json"), num_labels, labels
    )


def import_weights(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    num_labels: int | None = None,
    labels: Sequence[str] | None = None,
) -> Imported:
    """Like `import_checkpoint`, from a state dict and the values of its `config.json`."""
    checkpoint = Checkpoint.of(weights, config)
    system, plan = recognize(checkpoint)
    return build(system, plan, checkpoint, num_labels, labels)


def recognize(checkpoint: Checkpoint) -> tuple[str, ImportPlan]:
    for system, make_plan in SYSTEMS.items():
        plan = make_plan(checkpoint)
        if plan is not None:
            return system, plan
    if checkpoint.find(r"heads\.classifiers\."):
        raise CannotLoad("this is an offramp model already; it needs no import")
    if checkpoint.find(r"(\w+\.)?embeddings\."):
        raise CannotLoad(
            "this is a plain transformers model; add exits with `offramp train` or ExitModel.from_encoder"
        )
    raise CannotLoad(
        "the names of the weights match no known system. Expected DeeBERT or RomeBERT "
        "(bert. or roberta.encoder.highway.*), PABEE (bert. or albert.* with classifiers.*), ELBERT "
        "(albert.encoder.exit_out_layer*) or ElasticBERT (elasticbert.encoder.pooler.*), "
        f"found {list_some(checkpoint.weights)}"
    )


__all__ = ["SYSTEMS", "Imported", "import_checkpoint", "import_weights"]
