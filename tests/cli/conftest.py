"""A working folder: a tiny encoder, a few rows, a trained model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer, PreTrainedModel
from typer.testing import CliRunner, Result

from offramp.cli import app

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "plot", "a", "very", "not"]
Run = Callable[..., Result]


@pytest.fixture(scope="session")
def run() -> Run:
    """run("info", folder, "--json") -> a result with exit_code, stdout and stderr."""

    def invoke(*arguments: Any, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)

    return invoke


@pytest.fixture(scope="session")
def ask(run: Run) -> Callable[..., Any]:
    """ask("info", folder) -> the JSON that the command prints; it must succeed."""

    def invoke(*arguments: Any, stdin: str | None = None) -> Any:
        result = run(*arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return invoke


@pytest.fixture(scope="session")
def save_encoder(tiny_encoder: Callable[..., PreTrainedModel]) -> Callable[..., Path]:
    """save_encoder(folder, "bert", layers=4) -> the folder, with a random encoder and a tokenizer in it."""

    def save(folder: Path, model_type: str = "bert", **options: Any) -> Path:
        tiny_encoder(model_type, **{"pad_token_id": 0, "initializer_range": 0.05, **options}).save_pretrained(
            folder
        )
        (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
        BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def write_rows() -> Callable[..., Path]:
    """write_rows(file, 24) -> the file, with positive and negative examples; no other file has the same texts."""

    def write(file: Path, rows: int = 24) -> Path:
        starts, labels = ["not a good", "a very good"], ["no", "yes"]
        lines = [
            f"{starts[row % 2]} film {'plot ' * (row % 5)}{file.stem}{row},{labels[row % 2]}"
            for row in range(rows)
        ]
        file.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
    run: Run,
    save_encoder: Callable[..., Path],
    write_rows: Callable[..., Path],
) -> Path:
    """A folder with `encoder`, `train.csv`, `dev.csv`, the run `films`, and `dev.trace` of its model."""
    home = tmp_path_factory.mktemp("trained")
    save_encoder(home / "encoder")
    files = [write_rows(home / "train.csv", 40), write_rows(home / "dev.csv", 60)]
    quick = ["--epochs", 3, "--learning-rate", 5e-3, "--batch-size", 8, "--argument", "report_to=none"]
    quick += ["--recipe", "pabee", "--exits", "0-4"]
    data = ["--train", files[0], "--validation", files[1]]
    done = run("train", home / "encoder", *data, *quick, "--out", home / "films")
    assert done.exit_code == 0, done.output
    done = run("trace", home / "films", "--data", files[1], "--out", home / "dev.trace")
    assert done.exit_code == 0, done.output
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained` that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "home"))
