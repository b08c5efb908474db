"""train(): runs the phases of a recipe one after the other, and resumes after an interruption.

`start.py` finds the model, recipe and arguments, `preflight.py` checks them, `data.py` tokenizes, `trainer.py` runs
one phase, `run_dir.py` manages the output folder.
"""

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from datasets import Dataset, DatasetDict
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

from offramp.data import Task
from offramp.data.metrics import compute
from offramp.files import SCORES, explain_damage, name_in_errors, read_json, write_files
from offramp.models.exit_model import ExitModel
from offramp.models.heads import HeadConfig
from offramp.problems import UNLABELLED, Array
from offramp.row_hashes import save_hashes
from offramp.tags import TagScheme, begin_texts
from offramp.training.data import (
    TagCollator,
    add_teacher,
    check_unlabelled,
    has_labels,
    load_splits,
    text_limit,
    tokenize_splits,
    train_rows,
    training_hashes,
)
from offramp.training.features import (
    Features,
    collect_features,
    standardized,
    whole_texts,
    words_file,
)
from offramp.training.preflight import check, check_effects, check_labels, describe, prepare, start_at_mean
from offramp.training.recipes import Phase, Recipe
from offramp.training.run_dir import identity, last_complete_checkpoint, register_run
from offramp.training.start import Origin, Source, training_arguments
from offramp.training.trainer import PhaseTrainer

LEAST_GAP = 0.02
"""The least difference in score between two exits that is worth a warning."""


@dataclass(frozen=True)
class Trained:
    """The result of `train`."""

    model: ExitModel
    scores: dict[str, list[float]]
    """Each metric of the task at each exit, on the validation split; empty without one."""
    folder: Path
    """Contains the saved model, its tokenizer and its scores."""


def train(
    model: Source,
    task: Task | Dataset | DatasetDict,
    recipe: str | Recipe | None = None,
    args: TrainingArguments | Mapping[str, Any] | None = None,
    *,
    exits: int | Sequence[int] | None = None,
    head: HeadConfig | dict[str, Any] | None = None,
    layers: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int = 128,
    early_stopping: int | None = None,
    unlabelled: Any = None,
    callbacks: Sequence[TrainerCallback] = (),
    progress: bool | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Trained:
    """Trains the exits of a model on a task; a loaded `ExitModel` is trained in place, unless `layers` cuts it.

    Called again with the same `output_dir`, it resumes where it was interrupted and ends with the weights of an
    uninterrupted run.

    Args:
        model: an encoder or a fine-tuned classifier, to which exits are added, or a model with exits: loaded, or its
            folder or name on the hub.
        task: train and validation splits, labels and metrics; or a data set, as for `Task.from_dataset`.
        recipe: a name in `RECIPES`, with or without options ("romebert:kind=ta"), or a `Recipe`. By default "joint",
            or "frozen" for a model that is fine-tuned already, whose backbone and last exit then stay as they are.
        args: changes to our defaults of transformers' TrainingArguments, such as {"output_dir": "run",
            "num_train_epochs": 5}, or TrainingArguments; used for every phase that does not set its own. The best
            checkpoint is the one with the best headline metric, averaged over exits;
            metric_for_best_model="eval_loss" uses the loss instead.
        exits: where exits are added, as in `ExitModel.from_encoder`; by default after every layer and before the
            first, or, for a published recipe, where its authors have them: after every layer.
        head: options of the added heads.
        layers: keep only the first layers; there must be an exit after the last of them.
        tokenizer: by default that of the model or encoder.
        max_length: longer texts are truncated to this number of tokens; for a tagger, they become several rows.
        early_stopping: end a phase after this number of evaluations without improvement.
        unlabelled: further text without labels, a `datasets.Dataset` with the columns `text` and maybe `text_pair`,
            for recipes that can use it (`joint`, `frozen`, `mixed`).
        callbacks: transformers' TrainerCallbacks.
        progress: show a bar while the frozen backbone runs over the texts; by default unless `args.disable_tqdm`.
        log: called with a summary of the run before it starts.
    """
    origin = Origin.find(model)
    recipe = origin.choose_recipe(recipe, layers)
    check_effects(recipe, args)
    args = training_arguments(args)
    home = Path(args.output_dir or "offramp-run")
    set_seed(args.seed)
    if not isinstance(task, Task):
        task = Task.from_dataset(task, **origin.label_options(recipe))
    if not recipe.trains_backbone:
        origin.check_classifier(task, layers)
    model, tokenizer = origin.load(task, recipe, exits, head, tokenizer)
    model = model if layers is None else model.truncate(layers)
    try:
        check(model, task, recipe, args, early_stopping)
        task = prepare(model, task, recipe)
        rows = load_splits(task, check_unlabelled(unlabelled, task, recipe))
        log(describe(rows, task, recipe, args, model.config.exits, max_length))
        limit = text_limit(tokenizer, max_length, model.max_length)
        data = tokenize_splits(rows, tokenizer, limit, task.problem.of_tokens)
        check_labels(task, recipe, data)
        if not task.problem.has_classes and not model.config.fine_tuned and has_labels(data, "train"):
            start_at_mean(model, data["train"]["labels"][:])
        model.config.trained_length = limit
        model.config.trained_on_pairs = "text_pair" in task.text_columns
        run = identity(model, recipe, args, data, task=task.name, early_stopping=early_stopping)
        with args.main_process_first(local=False):
            register_run(home, run)
        if (home / "model" / SCORES).exists():  # written last
            return load_finished(model, home / "model")
        stopping = [EarlyStoppingCallback(early_stopping)] if early_stopping else []
        shown = not args.disable_tqdm if progress is None else progress
        training = Training(model, task, args, tokenizer, data, [*callbacks, *stopping], shown)
        with name_in_errors(home):
            for number, phase in enumerate(recipe.phases, start=1):
                training.run(phase, home / f"phase-{number}")
            scores = training.save(recipe, home / "model", training_hashes(rows))
    finally:
        model.requires_grad_(True)
        nn.Module.eval(model)
    if scores:
        check_last_exit(model.config.exits, scores[task.headline], len(data["validation"]), task.headline)
    return Trained(model, scores, home / "model")


def check_last_exit(layers: Sequence[int], scores: Sequence[float], examples: int, metric: str) -> None:
    """Warns if an inner exit is better than the last one by two standard errors of a share or more."""
    inner = {layer: score for layer, score in zip(layers[:-1], scores[:-1], strict=True) if layer > 0}
    best = max(inner, key=inner.__getitem__, default=None)
    if best is not None and inner[best] - scores[-1] > max(LEAST_GAP, examples**-0.5):
        warnings.warn(
            f"the exit at layer {best} is clearly better than the last one ({metric} {100 * inner[best]:.1f} and "
            f"{100 * scores[-1]:.1f}), so the upper layers are not trained enough: train for more epochs, or keep "
            f"only the first layers with layers={best}",
            stacklevel=3,
        )


@dataclass(frozen=True)
class Training:
    """What the phases of a run share."""

    model: ExitModel
    task: Task
    args: TrainingArguments
    tokenizer: PreTrainedTokenizerBase
    data: Mapping[str, Any]
    callbacks: Sequence[TrainerCallback]
    progress: bool

    def run(self, phase: Phase, folder: Path) -> None:
        """Runs or resumes a phase, and loads its final weights."""
        done = folder / "done"
        if not done.exists():
            if phase.trainable == "exits":
                self.train_heads(phase, folder)
            else:
                self.train_backbone(phase, folder)
        load_weights(self.model, done)

    def train_backbone(self, phase: Phase, folder: Path) -> None:
        rows = train_rows(self.data, phase.unlabelled)
        if phase.frozen_teacher:
            with self.args.main_process_first(local=False):  # the others read its file
                rows = add_teacher(
                    self.model, rows, self.collator, folder / "teacher.npy", self.batch_size, self.progress
                )
        trainer = self.trainer(phase, folder, rows, self.data.get("validation"))
        run_trainer(trainer, folder)
        save_phase(trainer, folder)

    def train_heads(self, phase: Phase, folder: Path) -> None:
        """On the pooled features of the frozen backbone, which runs once over the texts."""
        splits = {"train": train_rows(self.data, phase.unlabelled), "validation": self.data.get("validation")}
        if self.task.problem.of_tokens and splits["validation"] is not None:
            splits["validation"] = whole_texts(splits["validation"])
        with self.args.main_process_first(local=False):  # the others read its file
            features = {
                name: collect_features(
                    self.model, rows, self.collator, folder / f"{name}.npy", self.batch_size, self.progress
                )
                for name, rows in splits.items()
                if rows is not None
            }
        with standardized(self.model, features) if phase.standardize else nullcontext():
            trainer = self.trainer(phase, folder, features["train"], features.get("validation"))
            run_trainer(trainer, folder)
        save_phase(trainer, folder)
        if trainer.is_world_process_zero():
            for name in features:
                (folder / f"{name}.npy").unlink()
                words_file(folder / f"{name}.npy").unlink(missing_ok=True)

    def trainer(self, phase: Phase, folder: Path, train: Any, validation: Any) -> PhaseTrainer:
        return PhaseTrainer(
            self.model,
            phase,
            self.task.name,
            args=phase_arguments(self.args, phase, folder, self.task, self.data, train),
            train_dataset=train,
            eval_dataset=validation,
            processing_class=self.tokenizer,
            data_collator=as_batch if isinstance(train, Features) else self.collator,
            compute_metrics=partial(
                compute_metrics, self.model, self.task, texts=getattr(validation, "texts", None)
            ),
            preprocess_logits_for_metrics=best_tags if self.task.problem.of_tokens else None,
            callbacks=list(self.callbacks),
        )

    def save(self, recipe: Recipe, folder: Path, hashes: Array) -> dict[str, list[float]]:
        """Scores every exit on the validation split, and saves the model with the hashes of its training rows."""
        trainer = self.trainer(recipe.phases[-1], folder, self.data["train"], self.data.get("validation"))
        scores = {}
        if has_labels(self.data, "validation"):
            scores = exit_scores(self.task, trainer.predict(self.data["validation"]))
        config = self.model.config
        config.inner_exits_trained |= any(phase.trainable != "final" for phase in recipe.phases)
        config.fine_tuned = True
        trainer.save_model(str(folder))
        if trainer.is_world_process_zero():
            save_hashes(folder, hashes)
            record = {"layers": self.model.config.exits, **scores}
            write_files({folder / SCORES: json.dumps(record, indent=2)})
        return scores

    @property
    def collator(self) -> DataCollatorWithPadding:
        return (TagCollator if self.task.problem.of_tokens else DataCollatorWithPadding)(self.tokenizer)

    @property
    def batch_size(self) -> int:
        return int(self.args.per_device_eval_batch_size)


def as_batch(batch: Any) -> Any:
    """Features come as a whole batch already."""
    return batch


def phase_arguments(
    args: TrainingArguments, phase: Phase, folder: Path, task: Task, data: Mapping[str, Any], train: Any
) -> TrainingArguments:
    args = copy.copy(args)
    args.output_dir = str(folder)
    args.remove_unused_columns = not isinstance(train, Features)  # which have no columns
    args.restore_callback_states_from_checkpoint = True  # the count of early stopping
    if phase.batch_size is not None:
        args.per_device_train_batch_size = phase.batch_size
    if phase.epochs is not None:
        args.num_train_epochs = phase.epochs
    elif has_labels(data, "train"):
        # unlabelled text adds variety, not updates: an epoch has as many as the labelled examples need
        args.num_train_epochs *= len(data["train"]) / len(train)
    if not has_labels(data, "validation"):
        args.eval_strategy = cast(Any, "no")
        args.load_best_model_at_end = False
    elif args.metric_for_best_model in (None, "loss"):
        args.metric_for_best_model = task.headline if phase.trainable == "final" else f"{task.headline}_mean"
        args.greater_is_better = True
    return args


def best_tags(logits: Any, labels: Any) -> Any:
    """The tags of tokens, which take less memory than their logits."""
    return logits.argmax(-1)


def compute_metrics(
    model: ExitModel, task: Task, prediction: EvalPrediction, texts: Array | None = None
) -> dict[str, float]:
    """All metrics of the last exit; the headline metric of every exit, and its mean."""
    scores = exit_scores(task, prediction, texts)
    headline = scores[task.headline]
    layers = [f"{task.headline}_layer_{layer}" for layer in model.config.exits]
    return {
        **{metric: values[-1] for metric, values in scores.items()},
        **dict(zip(layers, headline, strict=True)),
        f"{task.headline}_mean": float(np.mean(headline)),
    }


def exit_scores(task: Task, prediction: Any, texts: Array | None = None) -> dict[str, list[float]]:
    """Each metric of the task at each exit; `texts` has the text of each word, if words are examples."""
    predictions, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    if task.problem.of_tokens:
        by_exit, labels = tagged_spans(task, predictions, labels, texts)
    else:
        by_exit = [*task.problem.decode(predictions).swapaxes(0, 1)]  # (examples, exits, ...)
    scores = [compute(task.metrics, labels, decoded) for decoded in by_exit]
    return {metric: [score[metric] for score in scores] for metric in task.metrics}


def tagged_spans(task: Task, tags: Array, labels: Array, texts: Array | None) -> tuple[list[Array], Array]:
    """The spans of each exit, and those of the labels: tables, in which the same spans have the same rows.

    `tags` are (rows, tokens, exits) and `labels` (rows, tokens), or both of words, (words, exits) and (words,).
    """
    labelled = labels != UNLABELLED
    if texts is None:
        texts = np.broadcast_to(np.arange(len(labels))[:, None], labels.shape)
    texts, tags, labels = texts[labelled], tags[labelled], labels[labelled]
    begins = begin_texts(texts)
    scheme = TagScheme(task.labels or ())
    return [scheme.spans(of_exit, begins) for of_exit in tags.T], scheme.spans(labels, begins)


def run_trainer(trainer: PhaseTrainer, folder: Path) -> None:
    with trainer.args.main_process_first(local=False):
        checkpoint = last_complete_checkpoint(folder)
    trainer.train(resume_from_checkpoint=checkpoint)


def save_phase(trainer: PhaseTrainer, folder: Path) -> None:
    incomplete = folder / "incomplete"
    trainer.save_model(str(incomplete))
    if trainer.is_world_process_zero():
        incomplete.rename(folder / "done")
    trainer.accelerator.wait_for_everyone()


def load_weights(model: ExitModel, folder: Path) -> None:
    with explain_damage(folder):
        load_model(model, folder / "model.safetensors")


def load_finished(model: ExitModel, folder: Path) -> Trained:
    """The result of a finished run, with the policy that was saved with it later."""
    load_weights(model, folder)
    with explain_damage(folder):
        saved = type(model.config).from_pretrained(folder, trust_remote_code=False)
        for name in ("policy", "policy_target", "fine_tuned", "inner_exits_trained"):
            setattr(model.config, name, getattr(saved, name))
    scores = {name: values for name, values in read_json(folder / SCORES).items() if name != "layers"}
    return Trained(model, scores, folder)
