"""The output folder of a run, and how a run is recognized when it is started again.

run.json            the settings of the run, so that different runs are not mixed up
phase-1/            Trainer's checkpoints and logs of the first phase
phase-1/done/       the final weights of the phase
model/              the trained model, its tokenizer and `scores.json`
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
from torch import nn
from transformers import TrainingArguments

from offramp.errors import BadOption
from offramp.files import digest, read_json, write_files
from offramp.models.exit_model import ExitModel, hash_weights, tensor_bytes
from offramp.training.recipes import Phase, Recipe

ARGUMENTS_THAT_CHANGE_WEIGHTS = """
num_train_epochs max_steps seed data_seed full_determinism ignore_data_skip
per_device_train_batch_size train_batch_size world_size gradient_accumulation_steps auto_find_batch_size
train_sampling_strategy dataloader_drop_last dataloader_in_order
learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay max_grad_norm neftune_noise_alpha
optim optim_args optim_target_modules adam_beta1 adam_beta2 adam_epsilon
bf16 fp16 tf32 torch_compile torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config
accelerator_config parallelism_config fsdp fsdp_config deepspeed
eval_strategy eval_steps eval_delay eval_on_start bf16_full_eval fp16_full_eval label_names
load_best_model_at_end metric_for_best_model greater_is_better
""".split()
"""Fields and properties of TrainingArguments. Evaluation draws random numbers, and chooses the best checkpoint.

Hardware is not among them: a run may be resumed on another machine.
"""


def identity(
    model: ExitModel, recipe: Recipe, args: TrainingArguments, data: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Everything the weights depend on, as JSON, except new heads: they are random at every start."""
    saving = ["save_strategy", "save_steps"] if args.load_best_model_at_end else []
    fields = {
        "recipe": recipe.name,
        "phases": [phase_fields(phase) for phase in recipe.phases],
        "exits": model.config.exits,
        "head": model.config.head,
        "encoder": digest(map(tensor_bytes, model.backbone.state_dict().values())),
        "data": {split: digest([table_bytes(rows)]) for split, rows in data.items()},
        **{name: getattr(args, name) for name in [*ARGUMENTS_THAT_CHANGE_WEIGHTS, *saving]},
        **more,
    }
    if model.config.fine_tuned:
        fields["last_exit"] = hash_weights(nn.ModuleList(model.heads.parts(len(model.config.exits) - 1)))
    return dict(json.loads(json.dumps(fields, default=repr)))


def phase_fields(phase: Phase) -> dict[str, Any]:
    """The fields of a phase, with the loss as its name and options."""
    loss: Any = phase.loss
    options = dict(loss.keywords) if isinstance(loss, partial) else {}
    function = loss.func if isinstance(loss, partial) else loss
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {**asdict(phase), "loss": name, "loss_settings": options}


def table_bytes(rows: Any) -> bytes:
    # without metadata: datasets store a hash of the functions that made the rows, which differs between versions
    table = rows.with_format("arrow")[:].replace_schema_metadata().combine_chunks()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def register_run(home: Path, run: Mapping[str, Any]) -> None:
    """Writes run.json, or raises BadOption if the folder belongs to a different run."""
    file = home / "run.json"
    if not file.exists():
        write_files({file: json.dumps(run, indent=2)})
        return
    before = read_json(file)
    different = sorted(name for name in {*before, *run} if before.get(name) != run.get(name))
    if different:
        raise BadOption(
            f"{home} contains a different run (it differs in {', '.join(different)}); choose another folder, "
            "or delete this one to start over"
        )


def last_complete_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint; incomplete ones are removed."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1])):
        try:
            # Trainer writes this file last
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(checkpoint, ignore_errors=True)
        else:
            return str(checkpoint)
    return None
