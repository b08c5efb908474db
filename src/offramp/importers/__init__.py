"""Checkpoints written by the five older codebases -> ExitModel.

Each system has a file that says which of its names become which of ours. The system is recognised from the
names of the weights. Nothing is lost in silence: every weight that the model needs must be there, and every
weight that it does not need is either known, and listed in the result, or an error.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from offramp.errors import CannotLoad
from offramp.importers import deebert, elasticbert, elbert, pabee
from offramp.importers.base import Checkpoint, Imported, Plan, build, some
from offramp.importers.checkpoint_files import read_config, read_weights

SYSTEMS: dict[str, Callable[[Checkpoint], Plan | None]] = {
    "deebert": deebert.plan,
    "pabee": pabee.plan,
    "elbert": elbert.plan,
    "elasticbert": elasticbert.plan,
}


def import_checkpoint(
    folder: str | Path, num_labels: int | None = None, labels: Sequence[str] | None = None
) -> Imported:
    """The model in a folder that DeeBERT, RomeBERT, PABEE, ELBERT or ElasticBERT has written.

    The folder holds `config.json` and `model.safetensors` or `pytorch_model.bin`, whole or in shards. The
    tokenizer's files beside them are the caller's: load them with transformers' `BertTokenizer` and the like.

        imported = import_checkpoint("sst2-two_stage")
        imported.model.save_pretrained("sst2")
        print(imported.system, imported.dropped)

    Args:
        folder: where the checkpoint is.
        num_labels: how many outputs; needed only where there is no classifier (ElasticBERT's pretraining).
        labels: names of the classes; by default those in `config.json`.
    """
    return import_weights(read_weights(Path(folder)), read_config(Path(folder)), num_labels, labels)


def import_weights(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    num_labels: int | None = None,
    labels: Sequence[str] | None = None,
) -> Imported:
    """As `import_checkpoint`, for a state dict and the values of its `config.json`."""
    checkpoint = Checkpoint.of(weights, config)
    system, plan = recognise(checkpoint)
    return build(system, plan, checkpoint, num_labels, labels)


def recognise(checkpoint: Checkpoint) -> tuple[str, Plan]:
    for system, plan_of in SYSTEMS.items():
        plan = plan_of(checkpoint)
        if plan is not None:
            return system, plan
    if checkpoint.find(r"heads\.classifiers\."):
        raise CannotLoad("this is an offramp model already; it needs no import")
    if checkpoint.find(r"(\w+\.)?embeddings\."):
        raise CannotLoad(
            "this is a plain transformers model; add exits with `offramp train` or ExitModel.from_encoder"
        )
    raise CannotLoad(
        "these weights come from none of the known systems. Known are DeeBERT and RomeBERT "
        "(bert. or roberta.encoder.highway.*), PABEE (bert. or albert.* with classifiers.*), ELBERT "
        "(albert.encoder.exit_out_layer*) and ElasticBERT (elasticbert.encoder.pooler.*); "
        f"these are {some(checkpoint.weights)}"
    )


__all__ = ["SYSTEMS", "Imported", "import_checkpoint", "import_weights"]
