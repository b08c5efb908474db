"""What a run starts from: the model with its exits, the task, the recipe and the training arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from offramp.data import Task
from offramp.data.checks import has_default_names
from offramp.errors import BadOption, CannotLoad
from offramp.files import explain_damage
from offramp.folder import find_source, load_model, load_tokenizer
from offramp.models.config import ExitConfig, names_in_order
from offramp.models.exit_model import ExitModel, classifier_kind
from offramp.models.heads import HeadConfig
from offramp.problems import TOKENS, problem_of
from offramp.training.recipes import Recipe, parse_recipe

Source = ExitModel | PreTrainedModel | str | Path
"""A model with exits, or an encoder or classifier to add them to; loaded, or its folder or name on the hub."""

DEFAULT_ARGUMENTS: Mapping[str, Any] = {
    "output_dir": "offramp-run",
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


def training_arguments(args: TrainingArguments | Mapping[str, Any] | None) -> TrainingArguments:
    """The arguments themselves, or our defaults with these changes."""
    if isinstance(args, TrainingArguments):
        return args
    changes = {"use_cpu": not torch.accelerator.is_available(), **(args or {})}
    changes["output_dir"] = str(changes.get("output_dir", DEFAULT_ARGUMENTS["output_dir"]))
    return TrainingArguments(**{**DEFAULT_ARGUMENTS, **changes})


@dataclass(frozen=True)
class Origin:
    """What is known of a model before its weights are loaded."""

    source: Source
    config: PreTrainedConfig
    fine_tuned: bool
    """Whether its last exit, or its classifier, is trained."""
    problem_type: str | None = None
    """As its config or its architecture says."""

    @classmethod
    def find(cls, source: Source) -> "Origin":
        if isinstance(source, PreTrainedModel):
            config, kinds = source.config, [kind.__name__ for kind in type(source).mro()]
        else:
            source = find_source(str(source))
            with explain_damage(source):
                config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            kinds = config.architectures or []
        kind = classifier_kind(kinds)
        problem = TOKENS if kind == "ForTokenClassification" else config.problem_type
        return cls(source, config, getattr(config, "fine_tuned", False) or kind is not None, problem)

    @property
    def name(self) -> str:
        return self.config.name_or_path or "the model"

    def keeps_classifier(self, layers: int | None) -> bool:
        """Whether the last exit of the first `layers` layers is trained already."""
        return self.fine_tuned and (layers is None or getattr(self.config, "inner_exits_trained", False))

    def choose_recipe(self, recipe: str | Recipe | None, layers: int | None) -> Recipe:
        """A fine-tuned model is not trained again unless asked for."""
        if isinstance(recipe, Recipe):
            return recipe
        return parse_recipe(recipe or ("frozen" if self.keeps_classifier(layers) else "joint"))

    def label_options(self, recipe: Recipe) -> dict[str, Any]:
        """Options of a task for this model: for a recipe that needs no labels, they are the model's."""
        if any(phase.needs_labels for phase in recipe.phases):
            return {}
        problem = problem_of(self.config.num_labels or 1, self.problem_type)
        labels = {"labels": names_in_order(self.config)} if problem.has_classes else {}
        return {"problem_type": problem, "unlabelled": ["train"], **labels}

    def check_classifier(self, task: Task, layers: int | None) -> None:
        """A model whose last exit stays as it is must be trained, and for this task."""
        if not self.keeps_classifier(layers):
            raise BadOption(
                f"{self.name} has no trained classifier that could stay as it is; pass recipe='joint' to train one."
            )
        if self.config.num_labels != count_outputs(task):
            raise BadOption(
                f"the model has {self.config.num_labels} outputs and {task.name} needs {count_outputs(task)}; pass "
                "recipe='joint' to train it for this task."
            )

    def load(
        self,
        task: Task,
        recipe: Recipe,
        exits: int | Sequence[int] | None,
        head: HeadConfig | dict[str, Any] | None,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> tuple[ExitModel, PreTrainedTokenizerBase]:
        """The model with exits and its tokenizer."""
        if isinstance(self.config, ExitConfig):
            if exits is not None or head is not None:
                raise BadOption(f"{self.name} already has exits; leave out exits=... and head=...")
            if isinstance(self.source, ExitModel):
                return self.source, tokenizer or self.load_tokenizer()
            return load_model(str(self.source), tokenizer)
        tokenizer = tokenizer or self.load_tokenizer()
        if exits is None:
            exits = 1 if recipe.exit_at_embeddings else range(1, self.config.num_hidden_layers + 1)
        model = ExitModel.from_encoder(
            self.source,
            num_labels=count_outputs(task),
            exits=exits,
            head=head,
            problem_type=task.problem,
            labels=None if self.keeps_labels(task, recipe) else task.labels,
        )
        return model, tokenizer

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        if not isinstance(self.source, PreTrainedModel):
            return load_tokenizer(self.source)  # type: ignore[no-any-return]
        place = self.config.name_or_path or getattr(self.config, "encoder_config", self.config).name_or_path
        try:
            return load_tokenizer(place or "")  # type: ignore[no-any-return]
        except CannotLoad as error:
            where = f"found at {place}" if place else "known for this model"
            raise BadOption(f"no tokenizer {where}; pass tokenizer=...") from error

    def keeps_labels(self, task: Task, recipe: Recipe) -> bool:
        """Whether a classifier keeps the names of its labels; otherwise it gets those of the task.

        It does if they are those of the task, maybe in another order, or if the classifier is not trained further.
        """
        if not self.fine_tuned or self.config.num_labels != count_outputs(task):
            return False
        names = names_in_order(self.config)
        return {*names} == {*(task.labels or ())} or (
            not recipe.trains_backbone and not has_default_names(names)
        )


def count_outputs(task: Task) -> int:
    return len(task.labels) if task.labels else 1
