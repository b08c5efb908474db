"""The folder of a run: which run it is, and where it stopped.

run.json            what was started here, so that another run is not mixed with it
phase-1/            Trainer's checkpoints and logs of the first phase
phase-1/done/       its weights, once it has ended
model/              the trained model, its tokenizer and `scores.json`
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import torch
from torch import Tensor
from transformers import TrainingArguments

from offramp.atomic import write_files
from offramp.errors import BadOption
from offramp.model import ExitModel
from offramp.recipes import Phase, Recipe

DECISIVE = """
learning_rate per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps warmup_steps
weight_decay lr_scheduler_type lr_scheduler_kwargs optim adam_beta1 adam_beta2 adam_epsilon max_grad_norm seed
data_seed train_sampling_strategy bf16 fp16 world_size eval_strategy eval_steps load_best_model_at_end
metric_for_best_model greater_is_better
""".split()
"""The arguments on which the weights depend."""


def identity(
    model: ExitModel, recipe: Recipe, args: TrainingArguments, data: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """All that makes a run this run, as JSON. Fresh heads are not part of it: they differ at every start."""
    known = {
        "recipe": recipe.name,
        "phases": [described(phase) for phase in recipe.phases],
        "exits": model.config.exits,
        "head": model.config.head,
        "encoder": digest(*map(tensor_bytes, model.backbone.state_dict().values())),
        "data": {split: digest(table_bytes(rows)) for split, rows in data.items()},
        **{name: getattr(args, name) for name in DECISIVE},
        **more,
    }
    return dict(json.loads(json.dumps(known, default=repr)))


def described(phase: Phase) -> dict[str, Any]:
    """A phase with its loss by name and settings."""
    loss: Any = phase.loss
    settings = dict(loss.keywords) if isinstance(loss, partial) else {}
    function = loss.func if isinstance(loss, partial) else loss
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {**asdict(phase), "loss": name, "loss_settings": settings}


def digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]


def tensor_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def table_bytes(rows: Any) -> bytes:
    table = rows.with_format("arrow")[:]
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def claim(home: Path, run: Mapping[str, Any]) -> None:
    """Says in the folder what runs there; refuses a folder where something else ran."""
    file = home / "run.json"
    if not file.exists():
        write_files({file: json.dumps(run, indent=2)})
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    different = sorted(name for name in {*before, *run} if before.get(name) != run.get(name))
    if different:
        raise BadOption(
            f"{home} holds another run (it differs in {', '.join(different)}); choose another output_dir, "
            "or remove it to start anew"
        )


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end; half-written ones are removed."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1])):
        try:
            # Trainer writes it last
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(checkpoint, ignore_errors=True)
        else:
            return str(checkpoint)
    return None
