"""train(): the phases of a recipe one after the other, each where the last stopped, also after an interruption.

output_dir/run.json            what was started here, so that another run is not mixed with it
output_dir/phase-1/            Trainer's checkpoints and logs of the first phase
output_dir/phase-1/done/       its weights, once it has ended
output_dir/model/              the trained model, its tokenizer and `scores.json`
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors.torch import load_model
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

from offramp.errors import CannotTrain, UnfitRecipe
from offramp.model import ExitModel
from offramp.recipes import Phase, Recipe, recipe_named
from offramp.tasks import Task
from offramp.tasks.metrics import answers, compute
from offramp.training.trainer import PhaseTrainer


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
        args: transformers' TrainingArguments, for every phase alike; see `default_arguments`.
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
    fit(model, task, recipe)
    data = {split: tokenised(rows, tokenizer, max_length) for split, rows in task.load(*splits(task)).items()}
    claim(home, {**described(recipe), "task": task.name, "max_length": max_length, **settings(args)})
    for number, phase in enumerate(recipe.phases, start=1):
        if phase.needs_labels and "labels" not in data["train"].column_names:
            raise UnfitRecipe(
                f"{recipe.name} needs labels, and {task.name} has none; fastbert can do without"
            )
        trainer = PhaseTrainer(
            model,
            phase,
            task.name,
            args=phase_arguments(args, phase, home / f"phase-{number}", task, data),
            train_dataset=data["train"],
            eval_dataset=data.get("validation"),
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=partial(measured, model, task),
            callbacks=[*callbacks, *([EarlyStoppingCallback(early_stopping)] if early_stopping else [])],
        )
        follow(trainer, home / f"phase-{number}")
    model.requires_grad_(True)
    scores = exit_scores(trainer, task, data)
    finish(trainer, home / "model", scores)
    return Trained(model, scores, home / "model")


def tokenizer_beside(model: ExitModel) -> PreTrainedTokenizerBase:
    place = model.config.name_or_path or model.config.encoder_config.name_or_path
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise CannotTrain(
            f"no tokenizer at {place or 'the place of the encoder'}; pass tokenizer=..."
        ) from error
    return tokenizer


def fit(model: ExitModel, task: Task, recipe: Recipe) -> None:
    """The model takes the task's labels and what the recipe needs; what does not fit is said before any work."""
    outputs = len(task.labels) if task.labels else 1
    if outputs != model.config.num_labels:
        raise CannotTrain(
            f"{task.name} needs {outputs} outputs and the model has {model.config.num_labels}; "
            f"make it with num_labels={outputs}"
        )
    if model.config.problem_type != task.problem_type:
        raise CannotTrain(
            f"{task.name} is {task.problem_type} and the model was made for {model.config.problem_type}; "
            f"make it with problem_type={task.problem_type!r}"
        )
    if len(model.config.exits) == 1 and recipe.name != "final":
        raise UnfitRecipe(f"{recipe.name} trains inner exits and the model has none; take 'final'")
    model.config.policy = None  # it was made for the weights before
    if task.labels:
        model.config.id2label = dict(enumerate(task.labels))
        model.config.label2id = {name: index for index, name in enumerate(task.labels)}
    if "weights" in recipe.needs:
        model.add_exit_weights()
    if "gate" in recipe.needs:
        model.add_gate()


def splits(task: Task) -> list[str]:
    return [split for split in ("train", "validation") if split in task.splits]


def tokenised(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    def tokens(batch: dict[str, list[Any]]) -> dict[str, Any]:
        found = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=max_length))
        return {**found, "length": [len(ids) for ids in found["input_ids"]]}

    unneeded = [name for name in rows.column_names if name != "label"]
    rows = rows.map(tokens, batched=True, remove_columns=unneeded, desc="tokenising")
    return rows.rename_column("label", "labels") if "label" in rows.column_names else rows


def described(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON: losses by name and settings."""

    def phase_values(phase: Phase) -> dict[str, Any]:
        loss: Any = phase.loss
        keywords = dict(loss.keywords) if isinstance(loss, partial) else {}
        name = (loss.func if isinstance(loss, partial) else loss).__name__
        return {**asdict(phase), "loss": name, "loss_settings": keywords}

    return {"recipe": recipe.name, "phases": [phase_values(phase) for phase in recipe.phases]}


def settings(args: TrainingArguments) -> dict[str, Any]:
    """What of the arguments decides the weights."""
    names = (
        "learning_rate per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps "
        "warmup_steps weight_decay lr_scheduler_type optim max_grad_norm seed train_sampling_strategy"
    )
    return {name: json.loads(json.dumps(getattr(args, name))) for name in names.split()}


def claim(home: Path, run: Mapping[str, Any]) -> None:
    """Says in the folder what runs there; refuses a folder where something else ran."""
    file = home / "run.json"
    if not file.exists():
        home.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(run, indent=2))
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    different = sorted(name for name in {*before, *run} if before.get(name) != run.get(name))
    if different:
        raise CannotTrain(
            f"{home} holds a run with other settings ({', '.join(different)}); choose another output_dir, "
            "or remove it to start anew"
        )


def write_whole(file: Path, text: str) -> None:
    half = file.with_name(f".{file.name}.half")
    half.write_text(text, encoding="utf-8")
    half.replace(file)


def phase_arguments(
    args: TrainingArguments, phase: Phase, folder: Path, task: Task, data: Mapping[str, Any]
) -> TrainingArguments:
    args = copy.copy(args)
    args.output_dir = str(folder)
    args.remove_unused_columns = True
    if phase.epochs is not None:
        args.num_train_epochs = phase.epochs
    if "labels" not in getattr(data.get("validation"), "column_names", []):
        args.eval_strategy = cast(Any, "no")
        args.load_best_model_at_end = False
    elif args.metric_for_best_model in (None, "loss"):
        args.metric_for_best_model = task.headline if phase.trainable == "final" else f"{task.headline}_mean"
        args.greater_is_better = True
    return args


def measured(model: ExitModel, task: Task, prediction: EvalPrediction) -> dict[str, float]:
    """All metrics of the last exit, and the headline of every exit and on average."""
    given = answers(np.asarray(prediction.predictions), task.problem_type)  # (examples, exits, ...)
    labels = np.asarray(prediction.label_ids)
    by_exit = [compute([task.headline], labels, given[:, e])[task.headline] for e in range(given.shape[1])]
    layers = [f"{task.headline}_layer_{layer}" for layer in model.config.exits]
    return {
        **compute(task.metrics, labels, given[:, -1]),
        **dict(zip(layers, by_exit, strict=True)),
        f"{task.headline}_mean": float(np.mean(by_exit)),
    }


def follow(trainer: PhaseTrainer, folder: Path) -> None:
    """Runs a phase, or the rest of it, or takes over what it ended with."""
    done = folder / "done"
    if not done.exists():
        trainer.train(resume_from_checkpoint=last_whole_checkpoint(folder))
        half = folder / "half-done"
        trainer.save_model(str(half))
        if trainer.is_world_process_zero():
            half.rename(done)
        trainer.accelerator.wait_for_everyone()
    load_model(cast(ExitModel, trainer.model), done / "model.safetensors")


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end; half-written ones are removed."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1])):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)
        else:
            return str(checkpoint)
    return None


def exit_scores(trainer: PhaseTrainer, task: Task, data: Mapping[str, Any]) -> dict[str, list[float]]:
    if "labels" not in getattr(data.get("validation"), "column_names", []):
        return {}
    prediction = trainer.predict(cast(Any, data["validation"]))
    given = answers(np.asarray(prediction.predictions), task.problem_type)
    labels = np.asarray(prediction.label_ids)
    scores = [compute(task.metrics, labels, given[:, exit]) for exit in range(given.shape[1])]
    return {metric: [score[metric] for score in scores] for metric in task.metrics}


def finish(trainer: PhaseTrainer, folder: Path, scores: Mapping[str, Any]) -> None:
    trainer.save_model(str(folder))
    if trainer.is_world_process_zero():
        exits = cast(ExitModel, trainer.model).config.exits
        write_whole(folder / "scores.json", json.dumps({"layers": exits, **scores}, indent=2))
