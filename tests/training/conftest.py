"""A tiny task, tokenizer and model, and `fit`, which trains them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer, PreTrainedModel, TrainingArguments

from offramp import ExitModel, Recipe, Task, train
from offramp.training import Trained
from offramp.training.recipes import parse_recipe
from offramp.training.start import training_arguments

TRAIN_OPTIONS = {"tokenizer", "max_length", "early_stopping", "callbacks", "unlabelled"}

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "plot", "a", "very", "not"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> BertTokenizer:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
    return BertTokenizer(vocab=str(vocabulary))


LABELS = {
    "single_label_classification": lambda row: f'"{"yes" if row % 2 else "no"}"',
    "multi_label_classification": lambda row: '["yes"]' if row % 2 else '["no", "maybe"]',
    "regression": lambda row: str(float(row % 2) + 0.5),
}


@pytest.fixture
def tiny_task(tmp_path: Path) -> Callable[..., Task]:
    """tiny_task("regression", rows=24) -> reviews of good and bad films."""

    def make(
        problem_type: str = "single_label_classification", rows: int = 24, labelled: bool = True
    ) -> Task:
        for split in ("train", "validation"):
            with (tmp_path / f"{split}.jsonl").open("w", encoding="utf-8") as file:
                for row in range(rows):
                    text = ("a very good " if row % 2 else "not a good ") + "film " * (row % 5)
                    label = f', "label": {LABELS[problem_type](row)}' if labelled or split != "train" else ""
                    file.write(f'{{"text": "{text}"{label}}}\n')
        return Task.from_files(
            train=tmp_path / "train.jsonl",
            validation=tmp_path / "validation.jsonl",
            text="text",
            label="label",
            problem_type=problem_type,
            unlabelled=() if labelled else ("train",),
            name="films",
        )

    return make


@pytest.fixture
def tiny_model(tiny_encoder: Callable[..., PreTrainedModel]) -> Callable[..., ExitModel]:
    """tiny_model(num_labels=2, dropout=0.0, layers=3, ...) -> the same weights every time."""

    def make(num_labels: int = 2, dropout: float = 0.0, layers: int = 3, **options: Any) -> ExitModel:
        encoder = tiny_encoder(
            "bert",
            layers=layers,
            pad_token_id=0,
            initializer_range=0.05,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        head = {"dropout": dropout, **options.pop("head", {})}
        return ExitModel.from_encoder(encoder, num_labels=num_labels, head=head, **options)

    return make


@pytest.fixture
def quick_options() -> dict[str, Any]:
    """TrainingArguments for six quick steps, without evaluation."""
    return {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 5e-3,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "eval_strategy": "no",
        "load_best_model_at_end": False,
    }


@pytest.fixture
def quick(quick_options: dict[str, Any]) -> Callable[..., TrainingArguments]:
    """quick(folder, max_steps=2) -> TrainingArguments for a quick run in a folder."""
    return lambda folder, **changes: training_arguments({"output_dir": folder, **quick_options, **changes})


@pytest.fixture
def fit(
    tiny_model: Callable[..., ExitModel],
    tiny_task: Callable[..., Task],
    tokenizer: BertTokenizer,
    quick: Callable[..., TrainingArguments],
    tmp_path: Path,
) -> Callable[..., Trained]:
    """fit("pabee", model, task, folder="run", max_steps=2) -> trains in tmp_path/run; a new model unless given.

    Options of `train` go to it, all others are TrainingArguments.
    """

    def fit(
        recipe: str | Recipe = "pabee",
        model: ExitModel | None = None,
        task: Task | None = None,
        folder: str = "run",
        **options: Any,
    ) -> Trained:
        own = {name: options.pop(name) for name in TRAIN_OPTIONS & options.keys()}
        model = model or tiny_model()
        recipe = parse_recipe(recipe) if isinstance(recipe, str) else recipe
        model.config.fine_tuned |= not recipe.trains_backbone  # as if its last exit were trained
        return train(
            model,
            task or tiny_task(),
            recipe,
            quick(tmp_path / folder, **options),
            **{"tokenizer": tokenizer, **own},
        )

    return fit
