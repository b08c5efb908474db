"""train(): the phases of a recipe one after the other, each where the last stopped, also after an interruption.

`folder.py` says what lies where in the output_dir.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors.torch import load_model
from torch import nn
from transformers import (
    AutoTokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from offramp.atomic import write_files
from offramp.errors import BadOption, Incompatible
from offramp.model import ExitModel
from offramp.recipes import Phase, Recipe, recipe_named
from offramp.tasks import Task
from offramp.tasks.metrics import answers, compute
from offramp.training.preflight import fitted
from offramp.training.run_dir import claim, identity, last_whole_checkpoint
from offramp.training.trainer import PhaseTrainer

SCORES = "scores.json"
"""Written last, so where it is a run is finished."""


@dataclass(frozen=True)
class Trained:
    """What training ends with."""

    model: ExitModel
    scores: dict[str, list[float]]
    """Each metric of the task at each exit, on the validation split; empty without one."""
    folder: Path
    """The saved model, its tokenizer and its scores."""


def default_arguments(output_dir: str | Path, **changes: Any) -> TrainingArguments:
    """The arguments that `train` uses unless told otherwise; `changes` are TrainingArguments' own."""
    settings = {
        "learning_rate": 5e-5,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 64,
        "num_train_epochs": 3,
        "warmup_steps": 0.06,
        "weight_decay": 0.01,
        "train_sampling_strategy": "group_by_length",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "logging_steps": 20,
        "report_to": "tensorboard",
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(output_dir=str(output_dir), **{**settings, **changes})


def train(
    model: ExitModel,
    task: Task,
    recipe: str | Recipe = "pabee",
    args: TrainingArguments | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int = 128,
    early_stopping: int | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Trained:
    """Train the exits of a model on a task, in place.

    Started again with the same `output_dir`, it goes on where it was interrupted and ends with the weights of an
    uninterrupted run.

    Args:
        model: exits on an encoder.
        task: train and validation splits, labels and metrics.
        recipe: a name in `RECIPES`, or a `Recipe`.
        args: transformers' TrainingArguments, for every phase alike; see `default_arguments`. The best checkpoint
            is that with the best headline, on average over exits; write metric_for_best_model="eval_loss" to
            have the loss decide.
        tokenizer: by default the one that lies beside the encoder.
        max_length: longer texts are cut, in tokens.
        early_stopping: end a phase after so many evaluations without a better one.
        callbacks: transformers' TrainerCallbacks.
    """
    recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
    args = args or default_arguments("offramp-run")
    home = Path(args.output_dir or "offramp-run")
    tokenizer = tokenizer or tokenizer_beside(model)
    set_seed(args.seed)
    try:
        task = fitted(model, task, recipe, args, early_stopping)
        data = tokenized_splits(task, tokenizer, longest(model, tokenizer, max_length))
        check_labels(task, recipe, data)
        run = identity(model, recipe, args, data, task=task.name, early_stopping=early_stopping)
        with args.main_process_first(local=False):
            claim(home, run)
        if (home / "model" / SCORES).exists():
            return load_finished(model, home / "model")
        for number, phase in enumerate(recipe.phases, start=1):
            folder = home / f"phase-{number}"
            trainer = PhaseTrainer(
                model,
                phase,
                task.name,
                args=phase_arguments(args, phase, folder, task, data),
                train_dataset=data["train"],
                eval_dataset=data.get("validation"),
                processing_class=tokenizer,
                data_collator=DataCollatorWithPadding(tokenizer),
                compute_metrics=partial(measured, model, task),
                callbacks=[*callbacks, *([EarlyStoppingCallback(early_stopping)] if early_stopping else [])],
            )
            follow(trainer, folder)
        scores = exit_scores(trainer, task, data)
        finish(trainer, home / "model", scores)
    finally:
        model.requires_grad_(True)
        nn.Module.eval(model)
    return Trained(model, scores, home / "model")


def load_finished(model: ExitModel, folder: Path) -> Trained:
    """What a finished run ended with, and the policy that it has been given since."""
    load_model(model, folder / "model.safetensors")
    model.config.policy = type(model.config).from_pretrained(folder).policy
    scores = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    return Trained(model, {name: each for name, each in scores.items() if name != "layers"}, folder)


def tokenizer_beside(model: ExitModel) -> PreTrainedTokenizerBase:
    place = model.config.name_or_path or model.config.encoder_config.name_or_path
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise BadOption(
            f"no tokenizer at {place or 'the place of the encoder'}; pass tokenizer=..."
        ) from error
    return tokenizer


def longest(model: ExitModel, tokenizer: PreTrainedTokenizerBase, wanted: int) -> int:
    """How many tokens a text may have: what was asked for, if the encoder has so many positions."""
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if wanted < least:
        raise BadOption(f"max_length={wanted} leaves no room for texts; at least {least} tokens")
    return int(min(wanted, model.max_length, tokenizer.model_max_length))


def tokenized_splits(task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> dict[str, Any]:
    splits = [split for split in ("train", "validation") if split in task.splits]
    return {split: tokenized(rows, tokenizer, max_length) for split, rows in task.load(*splits).items()}


def tokenized(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    def tokens(batch: dict[str, list[Any]]) -> dict[str, Any]:
        found = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=max_length))
        return {**found, "length": [len(ids) for ids in found["input_ids"]]}

    unneeded = [name for name in rows.column_names if name != "label"]
    rows = rows.map(tokens, batched=True, remove_columns=unneeded, desc="tokenizing")
    return rows.rename_column("label", "labels") if "label" in rows.column_names else rows


def check_labels(task: Task, recipe: Recipe, data: Mapping[str, Any]) -> None:
    if any(phase.needs_labels for phase in recipe.phases) and not labelled(data, "train"):
        raise Incompatible(
            f"{recipe.name} needs labels, and {task.name} has none to learn from; "
            "fastbert(fine_tune=False) can do without"
        )


def labelled(data: Mapping[str, Any], split: str) -> bool:
    return split in data and "labels" in data[split].column_names


def phase_arguments(
    args: TrainingArguments, phase: Phase, folder: Path, task: Task, data: Mapping[str, Any]
) -> TrainingArguments:
    args = copy.copy(args)
    args.output_dir = str(folder)
    args.remove_unused_columns = True
    args.restore_callback_states_from_checkpoint = True  # early stopping goes on counting
    if phase.epochs is not None:
        args.num_train_epochs = phase.epochs
    if not labelled(data, "validation"):
        args.eval_strategy = cast(Any, "no")
        args.load_best_model_at_end = False
    elif args.metric_for_best_model in (None, "loss"):
        args.metric_for_best_model = task.headline if phase.trainable == "final" else f"{task.headline}_mean"
        args.greater_is_better = True
    return args


def measured(model: ExitModel, task: Task, prediction: EvalPrediction) -> dict[str, float]:
    """All metrics of the last exit, and the headline of every exit and on average."""
    scores = by_exit(task, prediction)
    headline = scores[task.headline]
    layers = [f"{task.headline}_layer_{layer}" for layer in model.config.exits]
    return {
        **{metric: each[-1] for metric, each in scores.items()},
        **dict(zip(layers, headline, strict=True)),
        f"{task.headline}_mean": float(np.mean(headline)),
    }


def by_exit(task: Task, prediction: Any) -> dict[str, list[float]]:
    """Each metric of the task at each exit."""
    given = answers(np.asarray(prediction.predictions), task.problem_type)  # (examples, exits, ...)
    labels = np.asarray(prediction.label_ids)
    scores = [compute(task.metrics, labels, given[:, exit]) for exit in range(given.shape[1])]
    return {metric: [score[metric] for score in scores] for metric in task.metrics}


def follow(trainer: PhaseTrainer, folder: Path) -> None:
    """Runs a phase, or the rest of it, or takes over what it ended with."""
    done = folder / "done"
    if not done.exists():
        with trainer.args.main_process_first(local=False):
            checkpoint = last_whole_checkpoint(folder)
        trainer.train(resume_from_checkpoint=checkpoint)
        half = folder / "half-done"
        trainer.save_model(str(half))
        if trainer.is_world_process_zero():
            half.rename(done)
        trainer.accelerator.wait_for_everyone()
    load_model(cast(ExitModel, trainer.model), done / "model.safetensors")


def exit_scores(trainer: PhaseTrainer, task: Task, data: Mapping[str, Any]) -> dict[str, list[float]]:
    return by_exit(task, trainer.predict(data["validation"])) if labelled(data, "validation") else {}


def finish(trainer: PhaseTrainer, folder: Path, scores: Mapping[str, Any]) -> None:
    trainer.save_model(str(folder))
    if trainer.is_world_process_zero():
        exits = cast(ExitModel, trainer.model).config.exits
        write_files({folder / SCORES: json.dumps({"layers": exits, **scores}, indent=2)})
