"""Helpers that several benchmarks use."""

import csv
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any


def read_texts(path: Path) -> list[str]:
    """One text per line, or the column `sentence` or `text` of a .tsv or .csv."""
    if path.suffix in (".tsv", ".csv"):
        return [row.get("sentence") or row["text"] for row in read_rows(path)]
    with path.open(encoding="utf-8", newline="") as file:
        return [line.strip() for line in file if line.strip()]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a .csv, or of a .tsv as in GLUE, whose quotes are ordinary characters."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            return list(csv.DictReader(file))
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_sst2(path: Path) -> dict[str, list[Any]]:
    rows = read_rows(path)
    return {"text": [row["sentence"].strip() for row in rows], "label": [int(row["label"]) for row in rows]}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def about(*packages: str, **facts: Any) -> dict[str, Any]:
    """What a measurement belongs to: the day, the processor, versions, and further facts."""
    versions = {package: version(package) for package in packages}
    return {
        "date": str(date.today()),
        "processor": processor(),
        **facts,
        "python": platform.python_version(),
        **versions,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def last_exit_only(model: Any) -> Any:
    """The same model with only its last exit, like a plain classifier."""
    from offramp.models.config import ExitConfig
    from offramp.models.exit_model import ExitModel

    exits = model.config.exits
    values = model.config.to_dict() | {"exits": [exits[-1]], "policy": None}
    values["head"]["classifier"] = "own"
    plain, last = ExitModel(ExitConfig(**values)), model.heads.head_of(len(exits) - 1)
    plain.backbone = model.backbone
    if last.pooler is not None:
        plain.heads.poolers[0] = last.pooler
    if last.hidden is not None:
        plain.heads.hidden[0] = last.hidden
    plain.heads.classifiers[0] = last.classifier
    plain.train(False)
    return plain


def fine_tune(
    encoder: Path,
    texts: Sequence[Sequence[str]],
    labels: Sequence[float],
    out: Path,
    *,
    seed: int,
    epochs: float = 2,
    bf16: bool = False,
    loss: Callable[..., Any] | None = None,
    max_length: int | None = None,
    config: Mapping[str, Any],
) -> None:
    """A plain classifier, fine-tuned by transformers alone unless its folder exists.

    `texts` is one column, or two for pairs; `max_length` is where they are truncated, also by those who load the
    classifier, by default at the encoder's limit; `config` changes the encoder's config.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

    if out.exists():
        return
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_max_length = max_length or tokenizer.model_max_length
    model = AutoModelForSequenceClassification.from_pretrained(encoder, dtype="float32", **config)
    rows = {**tokenizer(*map(list, texts), truncation=True), "labels": [*labels]}
    train(model, tokenizer, rows, out, seed=seed, epochs=epochs, bf16=bf16, compute_loss_func=loss)


def fine_tune_tagger(
    encoder: Path,
    words: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str]],
    out: Path,
    *,
    seed: int,
    epochs: float = 3,
    bf16: bool = False,
    config: Mapping[str, Any],
) -> None:
    """A plain tagger, as `fine_tune`: the first token of each word has its tag."""
    from transformers import (
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        set_seed,
    )

    if out.exists():
        return
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModelForTokenClassification.from_pretrained(encoder, dtype="float32", **config)
    found = tokenizer([*map(list, words)], is_split_into_words=True, truncation=True)
    labels = []
    for row, names in enumerate(tags):
        places = found.word_ids(row)
        labels.append(
            [
                -100 if word is None or word == before else config["label2id"][names[word]]
                for before, word in zip([None, *places], places, strict=False)
            ]
        )
    collator = DataCollatorForTokenClassification(tokenizer)
    rows = {**found, "labels": labels}
    train(model, tokenizer, rows, out, seed=seed, epochs=epochs, bf16=bf16, data_collator=collator)


def train(
    model: Any,
    tokenizer: Any,
    rows: Mapping[str, Any],
    out: Path,
    *,
    seed: int,
    epochs: float,
    bf16: bool,
    **options: Any,
) -> None:
    """Train with transformers' `Trainer`, and save the model in a folder that appears when it is whole."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(out.with_name("fine-tuning")),
        num_train_epochs=epochs,
        learning_rate=1e-4,
        per_device_train_batch_size=16,
        train_sampling_strategy="group_by_length",
        warmup_steps=0.06,
        weight_decay=0.01,
        bf16=bf16,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    trainer = Trainer(
        model, arguments, train_dataset=Dataset.from_dict(rows), processing_class=tokenizer, **options
    )
    trainer.train()
    draft = out.with_name(f"{out.name}.draft")
    trainer.save_model(str(draft))
    draft.rename(out)


def export_full_depth(original: Any, folder: Path, precision: str, texts: Sequence[Any]) -> Path:
    """A plain classifier (`load_original`) as one graph in ONNX Runtime, unless its folder exists."""
    from offramp import ExitModel, export

    if not folder.exists():
        layers = original.model.config.num_hidden_layers
        model = ExitModel.from_encoder(original.model, exits=[layers])
        export(model, folder, precision, original.tokenizer, texts=texts)
    return folder
