"""Before training: do model, task, recipe and arguments fit together? Mistakes are reported before any work.

`describe` sums up what is about to happen.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import TrainingArguments

from offramp.data import Task
from offramp.data.checks import has_default_names
from offramp.errors import BadOption, Incompatible
from offramp.models.exit_model import ExitModel
from offramp.problems import SingleLabel
from offramp.training.data import has_labels
from offramp.training.recipes import Phase, Recipe
from offramp.training.start import count_outputs
from offramp.training.trainer import trainable_parameters
from offramp.wording import count


def check_effects(recipe: Recipe, args: Any) -> None:
    """Arguments that every phase of the recipe sets for itself would have no effect."""
    if not isinstance(args, Mapping) or any(phase.epochs is None for phase in recipe.phases):
        return
    for name in ("num_train_epochs", "learning_rate", "per_device_train_batch_size"):
        if name in args:
            raise BadOption(
                f"{name}={args[name]} has no effect: {recipe.name} sets its own. Pass its options, such as "
                f"recipe='{recipe.name}:epochs=20,rate=0.001'"
            )


def check(
    model: ExitModel, task: Task, recipe: Recipe, args: TrainingArguments, early_stopping: int | None
) -> None:
    if "train" not in task.splits:
        raise BadOption(f"{task.name} has no train split")
    check_outputs(model, task)
    check_arguments(task, args, early_stopping)
    for phase in recipe.phases:
        trainable_parameters(model, phase.trainable)
        check_loss(model, phase, recipe.needs)


def check_outputs(model: ExitModel, task: Task) -> None:
    outputs = count_outputs(task)
    if outputs != model.config.num_labels:
        raise BadOption(
            f"{task.name} needs {count(outputs, 'output')} and the model has {model.config.num_labels}; "
            "add exits to an encoder for this task"
        )
    if model.config.problem != task.problem:
        raise BadOption(
            f"{task.name} is {task.problem} and the model is for {model.config.problem}; "
            "add exits to an encoder for this task"
        )


def check_arguments(task: Task, args: TrainingArguments, early_stopping: int | None) -> None:
    if args.label_smoothing_factor:
        raise BadOption("label smoothing is not supported; leave label_smoothing_factor at 0")
    if args.save_only_model:
        raise BadOption("save_only_model=True makes checkpoints that cannot be resumed; leave it at False")
    if args.num_train_epochs <= 0 and args.max_steps <= 0:
        raise BadOption(f"num_train_epochs={args.num_train_epochs}; expected a number above 0")
    if early_stopping is not None and early_stopping < 1:
        raise BadOption(f"early_stopping={early_stopping}; expected 1 evaluation or more")
    evaluates = "validation" in task.splits and args.eval_strategy != "no" and args.load_best_model_at_end
    if early_stopping and not evaluates:
        raise BadOption(
            "early stopping needs a validation split, an eval_strategy and load_best_model_at_end=True"
        )


def check_loss(model: ExitModel, phase: Phase, needs: tuple[str, ...]) -> None:
    """Calls the loss once, so that a loss that cannot work fails now and not after an hour of training."""
    exits, outputs = len(model.config.exits), model.config.num_labels or 1
    labels: Any = torch.zeros(2, dtype=torch.long)
    if not isinstance(model.config.problem, SingleLabel):
        labels = torch.zeros(2, outputs)
    has_weights = model.config.learned_weights or "weights" in needs
    has_gate = model.heads.gate is not None or "gate" in needs
    for step in (None, 0):
        terms = phase.loss(
            torch.zeros(2, exits, outputs, requires_grad=True),
            labels if phase.needs_labels else None,
            problem=model.config.problem,
            weights=torch.zeros(exits - 1) if has_weights else None,
            gates=torch.full((2, exits), 0.5) if has_gate else None,
            teacher=None,
            step=step,
        )
        if not isinstance(terms, tuple) or any(term.shape for term in terms):
            raise Incompatible("a loss must return a tuple of scalar terms, such as (loss,)")
    if phase.gradients == "projected" and len(terms) < 2:
        raise Incompatible(
            "gradient projection needs a loss with two terms or more: the last exit's, then the others"
        )


def check_labels(task: Task, recipe: Recipe, data: Mapping[str, Any]) -> None:
    if any(phase.needs_labels for phase in recipe.phases) and not has_labels(data, "train"):
        raise Incompatible(
            f"{recipe.name} needs labels, and the train split of {task.name} has none; "
            "for a fine-tuned model, the recipe frozen needs none"
        )


def prepare(model: ExitModel, task: Task, recipe: Recipe) -> Task:
    """Adds what the recipe needs to the model and removes its policy; returns the task in the model's label order."""
    task = match_labels(model, task)
    if "weights" in recipe.needs:
        model.add_exit_weights()
    if "gate" in recipe.needs:
        model.add_gate()
    model.config.policy = None  # chosen for the old weights
    return task


@torch.no_grad()
def start_at_mean(model: ExitModel, labels: Any) -> None:
    """Let the new exits of a regression, whose biases are zero, predict the mean label.

    Otherwise all of them push the backbone towards that mean at first, and it may learn to map every text to the same
    vector.
    """
    for classifier in model.heads.classifiers:
        bias = cast(nn.Linear, classifier).bias
        if not bias.any():
            bias.copy_(torch.as_tensor(labels, dtype=bias.dtype).mean(0))


def match_labels(model: ExitModel, task: Task) -> Task:
    """A model with label names keeps them and their order, since its classifiers may be trained already."""
    names = model.config.label_names
    if task.labels is None or not has_default_names(names):
        return task.with_label_order(names, model.config.encoder_config.model_type)
    model.config.rename_labels(task.labels)
    return task


def describe(
    rows: Mapping[str, Any],
    task: Task,
    recipe: Recipe,
    args: TrainingArguments,
    exits: Sequence[int],
    max_length: int,
) -> str:
    columns, sizes = task.splits["train"].columns.roles(), {split: len(part) for split, part in rows.items()}
    frozen = (
        "" if recipe.trains_backbone else "; the backbone stays as it is (the recipe joint trains it too)"
    )
    lines = {
        "rows": ", ".join(f"{split} {size}" for split, size in sizes.items()),
        "columns": ", ".join(f"{role} {column!r}" for role, column in columns.items()),
        "labels": class_counts(task, rows["train"]),
        "recipe": f"{recipe.name}: {', '.join(phase_steps(recipe, args, sizes, task.problem.of_tokens))}{frozen}",
        "exits": f"at layers {', '.join(map(str, exits))}",
        "texts": f"up to {max_length} tokens",
    }
    return "\n".join(f"{name:9}{value}" for name, value in lines.items())


def class_counts(task: Task, rows: Any) -> str:
    if "label" not in rows.column_names:
        return "none in the training examples"
    if task.labels is None:
        return "numbers"
    labels = np.concatenate(rows["label"][:]) if task.problem.of_tokens else np.asarray(rows["label"])
    counts = labels.sum(0) if labels.ndim > 1 else np.bincount(labels, minlength=len(task.labels))
    return ", ".join(f"{name} {int(number)}" for name, number in zip(task.labels, counts, strict=True))


def phase_steps(
    recipe: Recipe, args: TrainingArguments, sizes: Mapping[str, int], of_tokens: bool
) -> Iterator[str]:
    for phase in recipe.phases:
        if of_tokens and phase.trainable == "exits" and phase.epochs:
            yield f"{phase.epochs:g} epochs over the words ({phase.trainable})"
            continue
        rows = sizes["train"]
        if phase.unlabelled and phase.epochs is not None:  # other phases have no more updates with more text
            rows += sizes.get("unlabelled", 0)
        size = phase.batch_size or args.per_device_train_batch_size
        epochs = args.num_train_epochs if phase.epochs is None else phase.epochs
        updates = math.ceil(rows / (size * args.gradient_accumulation_steps))
        steps = args.max_steps if args.max_steps > 0 else math.ceil(updates * epochs)
        yield f"{count(steps, 'step')} of {size} rows ({phase.trainable})"
