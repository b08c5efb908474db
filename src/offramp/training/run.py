"""train(): runs the phases of a recipe one after the other, and resumes after an interruption.

`preflight.py` checks the arguments, `data.py` tokenizes, `trainer.py` runs one phase, `run_dir.py` manages the
output folder.
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
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from offramp.atomic import write_files
from offramp.model import ExitModel
from offramp.problems import decode
from offramp.recipes import Phase, Recipe, recipe_named
from offramp.tasks import Task
from offramp.tasks.metrics import compute
from offramp.training.data import has_labels, load_tokenizer, tokenize_splits
from offramp.training.preflight import check, check_labels, prepare
from offramp.training.run_dir import claim, identity, last_complete_checkpoint
from offramp.training.trainer import PhaseTrainer

SCORES = "scores.json"
"""Written last: a run that has it is finished."""


@dataclass(frozen=True)
class Trained:
    model: ExitModel
    scores: dict[str, list[float]]
    """Each metric of the task at each exit, on the validation split; empty without one."""
    folder: Path
    """Contains the saved model, its tokenizer and its scores."""


def default_arguments(output_dir: str | Path, **changes: Any) -> TrainingArguments:
    """The defaults of `train`; `changes` are any of transformers' TrainingArguments."""
    defaults = {
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
    return TrainingArguments(output_dir=str(output_dir), **{**defaults, **changes})


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
    """Trains the exits of a model on a task, in place.

    Called again with the same `output_dir`, it resumes where it was interrupted and ends with the weights of an
    uninterrupted run.

    Args:
        model: an encoder with exits.
        task: train and validation splits, labels and metrics.
        recipe: a name in `RECIPES`, or a `Recipe`.
        args: transformers' TrainingArguments, used for every phase; see `default_arguments`. The best checkpoint
            is the one with the best headline metric, averaged over exits; pass
            metric_for_best_model="eval_loss" to use the loss instead.
        tokenizer: by default loaded from where the encoder was loaded.
        max_length: longer texts are truncated to this number of tokens.
        early_stopping: end a phase after this number of evaluations without improvement.
        callbacks: transformers' TrainerCallbacks.
    """
    recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
    args = args or default_arguments("offramp-run")
    home = Path(args.output_dir or "offramp-run")
    tokenizer = tokenizer or load_tokenizer(model)
    set_seed(args.seed)
    try:
        check(model, task, recipe, args, early_stopping)
        task = prepare(model, task, recipe)
        data = tokenize_splits(task, tokenizer, max_length, model.max_length)
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
                compute_metrics=partial(compute_metrics, model, task),
                callbacks=[*callbacks, *([EarlyStoppingCallback(early_stopping)] if early_stopping else [])],
            )
            run_phase(trainer, folder)
        validation = data["validation"] if has_labels(data, "validation") else None
        scores = {} if validation is None else exit_scores(task, trainer.predict(validation))
        trainer.save_model(str(home / "model"))
        if trainer.is_world_process_zero():
            record = {"layers": model.config.exits, **scores}
            write_files({home / "model" / SCORES: json.dumps(record, indent=2)})
    finally:
        model.requires_grad_(True)
        nn.Module.eval(model)
    return Trained(model, scores, home / "model")


def phase_arguments(
    args: TrainingArguments, phase: Phase, folder: Path, task: Task, data: Mapping[str, Any]
) -> TrainingArguments:
    args = copy.copy(args)
    args.output_dir = str(folder)
    args.remove_unused_columns = True
    args.restore_callback_states_from_checkpoint = True  # the count of early stopping
    if phase.epochs is not None:
        args.num_train_epochs = phase.epochs
    if not has_labels(data, "validation"):
        args.eval_strategy = cast(Any, "no")
        args.load_best_model_at_end = False
    elif args.metric_for_best_model in (None, "loss"):
        args.metric_for_best_model = task.headline if phase.trainable == "final" else f"{task.headline}_mean"
        args.greater_is_better = True
    return args


def compute_metrics(model: ExitModel, task: Task, prediction: EvalPrediction) -> dict[str, float]:
    """All metrics of the last exit; the headline metric of every exit, and its mean."""
    scores = exit_scores(task, prediction)
    headline = scores[task.headline]
    layers = [f"{task.headline}_layer_{layer}" for layer in model.config.exits]
    return {
        **{metric: values[-1] for metric, values in scores.items()},
        **dict(zip(layers, headline, strict=True)),
        f"{task.headline}_mean": float(np.mean(headline)),
    }


def exit_scores(task: Task, prediction: Any) -> dict[str, list[float]]:
    """Each metric of the task at each exit."""
    predictions = decode(np.asarray(prediction.predictions), task.problem_type)  # (examples, exits, ...)
    labels = np.asarray(prediction.label_ids)
    scores = [compute(task.metrics, labels, predictions[:, exit]) for exit in range(predictions.shape[1])]
    return {metric: [score[metric] for score in scores] for metric in task.metrics}


def run_phase(trainer: PhaseTrainer, folder: Path) -> None:
    """Runs or resumes a phase, and loads its final weights."""
    done = folder / "done"
    if not done.exists():
        with trainer.args.main_process_first(local=False):
            checkpoint = last_complete_checkpoint(folder)
        trainer.train(resume_from_checkpoint=checkpoint)
        incomplete = folder / "incomplete"
        trainer.save_model(str(incomplete))
        if trainer.is_world_process_zero():
            incomplete.rename(done)
        trainer.accelerator.wait_for_everyone()
    load_model(cast(ExitModel, trainer.model), done / "model.safetensors")


def load_finished(model: ExitModel, folder: Path) -> Trained:
    """The result of a finished run, with the policy that was saved with it later."""
    load_model(model, folder / "model.safetensors")
    model.config.policy = type(model.config).from_pretrained(folder).policy
    scores = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    return Trained(model, {name: values for name, values in scores.items() if name != "layers"}, folder)
