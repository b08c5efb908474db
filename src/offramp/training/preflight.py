"""Whether a model, a task and a recipe go together: what does not is said before any work."""

from typing import Any

import torch
from transformers import TrainingArguments

from offramp.errors import BadOption, Incompatible
from offramp.model import ExitModel
from offramp.problems import SINGLE_LABEL
from offramp.recipes import Phase, Recipe
from offramp.tasks import Task
from offramp.tasks.base import has_default_names
from offramp.training.trainer import freeze


def fitted(
    model: ExitModel, task: Task, recipe: Recipe, args: TrainingArguments, early_stopping: int | None
) -> Task:
    """The task with its labels in the model's order. The model gets what the recipe needs, and loses its policy."""
    if "train" not in task.splits:
        raise BadOption(f"{task.name} has no split to learn from; give it one named train")
    check_outputs(model, task)
    check_arguments(task, args, early_stopping)
    task = in_order(model, task)
    if "weights" in recipe.needs:
        model.add_exit_weights()
    if "gate" in recipe.needs:
        model.add_gate()
    for phase in recipe.phases:
        try_phase(model, phase)
    model.config.policy = None  # it was made for the weights before
    return task


def check_outputs(model: ExitModel, task: Task) -> None:
    outputs = len(task.labels) if task.labels else 1
    if outputs != model.config.num_labels:
        raise BadOption(
            f"{task.name} needs {outputs} outputs and the model has {model.config.num_labels}; "
            f"make it with num_labels={outputs}"
        )
    if model.config.problem_type != task.problem_type:
        raise BadOption(
            f"{task.name} is {task.problem_type} and the model was made for {model.config.problem_type}; "
            f"make it with problem_type={task.problem_type!r}"
        )


def check_arguments(task: Task, args: TrainingArguments, early_stopping: int | None) -> None:
    if args.label_smoothing_factor:
        raise BadOption("labels are not smoothed here; leave label_smoothing_factor at 0")
    if args.num_train_epochs <= 0 and args.max_steps <= 0:
        raise BadOption(f"num_train_epochs={args.num_train_epochs} trains nothing; take a number above 0")
    if early_stopping is not None and early_stopping < 1:
        raise BadOption(f"early_stopping={early_stopping}; expected a number of evaluations, from 1")
    evaluates = "validation" in task.splits and args.eval_strategy != "no" and args.load_best_model_at_end
    if early_stopping and not evaluates:
        raise BadOption(
            "early stopping needs a validation split, an eval_strategy and load_best_model_at_end=True"
        )


def in_order(model: ExitModel, task: Task) -> Task:
    """A model that has names for its labels keeps them and their order, for its answers may be trained already."""
    names = [name for _, name in sorted((model.config.id2label or {}).items())]
    if task.labels is None or not has_default_names(names):
        return task.with_label_order(names, model.config.encoder_config.model_type)
    model.config.id2label = dict(enumerate(task.labels))
    model.config.label2id = {name: index for index, name in enumerate(task.labels)}
    return task


def try_phase(model: ExitModel, phase: Phase) -> None:
    """One loss on made-up logits: a loss that cannot work fails now, not after an hour."""
    freeze(model, phase.trainable)
    exits, outputs = len(model.config.exits), model.config.num_labels or 1
    labels: Any = torch.zeros(2, dtype=torch.long)
    if model.config.problem_type != SINGLE_LABEL:
        labels = torch.zeros(2, outputs)
    for step in (None, 0):
        terms = phase.loss(
            torch.zeros(2, exits, outputs, requires_grad=True),
            labels if phase.needs_labels else None,
            problem_type=model.config.problem_type,
            weights=torch.zeros(exits - 1) if model.config.learned_weights else None,
            gates=torch.full((2, exits), 0.5) if model.heads.gate else None,
            teacher=None,
            step=step,
        )
        if not isinstance(terms, tuple) or any(term.shape for term in terms):
            raise Incompatible("a loss gives a tuple of its terms, each one number: return (loss,)")
    if phase.gradients == "projected" and len(terms) < 2:
        raise Incompatible(
            "gradients are projected between the last exit's term and others; the loss has one term"
        )
