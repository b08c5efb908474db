"""offramp export, info and bench with taggers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertTokenizer
from typer.testing import Result

from offramp import ExitModel, Tagger
from offramp.guarantees.losses import OF_TAGS
from offramp.model_info import ModelInfo
from offramp.reports.stored_policy import store_policy

Run = Callable[..., Result]
Ask = Callable[..., Any]
TAGS = ["O", "B-THING", "I-THING"]
WORDS = ["good", "bad", "film", "plot", "a", "very", "not"]


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory,
    save_encoder: Callable[..., Path],
    tiny_tagger: Callable[..., Any],
) -> Path:
    """A folder with the tagger `ner`, `texts.csv` without tags, and `test.conll`."""
    home = tmp_path_factory.mktemp("taggers")
    save_encoder(home / "encoder")
    model = ExitModel.from_encoder(tiny_tagger("bert", layers=2, pad_token_id=0, labels=TAGS))
    torch.manual_seed(7)
    for head in model.heads.classifiers[:-1]:
        torch.nn.init.normal_(head.weight, std=0.5)
    model.save_pretrained(home / "ner")
    BertTokenizer.from_pretrained(home / "encoder").save_pretrained(home / "ner")
    store_policy(home / "ner", "entropy:0.9")
    draw = random.Random(0)
    texts = [draw.choices(WORDS, k=draw.randint(2, 8)) for _ in range(150)]
    (home / "texts.csv").write_text("text\n" + "\n".join(map(" ".join, texts)))
    (home / "test.conll").write_text(
        "\n\n".join("\n".join(f"{word} {draw.choice(TAGS)}" for word in row) for row in texts)
    )
    return home


def test_an_exported_tagger_works_with_every_command_and_has_a_portable_folder(
    home: Path, run: Run, ask: Ask
) -> None:
    for line in (
        ("export", home / "ner", "--precision", "int8", "--data", home / "texts.csv", "--out", home / "int8"),
        ("export", home / "int8", "--portable", "--out", home / "portable"),
    ):
        done = run(*line)
        assert done.exit_code == 0, done.output
        assert "built-in" not in done.stderr
    for folder in ("int8", "portable"):
        about = ask("info", home / folder)
        assert about["problem"] == "token_classification"
        assert about["labels"] == TAGS
        assert about["runtime"] == "ONNX Runtime, int8"
        assert about["policy"] == "entropy:0.9"
    one, other = (Tagger.from_pretrained(home / folder) for folder in ("int8", "portable"))
    texts = (home / "texts.csv").read_text().splitlines()[1:20]
    assert one.tag(texts) == other.tag(texts)
    assert "from offramp import Tagger" in (home / "int8/README.md").read_text()
    runs = ask("bench", home / "portable", "--data", home / "test.conll", "--repeats", 1, "--limit", 20)[
        "runs"
    ]
    assert [each["name"] for each in runs] == ["full depth", "entropy:0.9"]
    assert {*runs[0]["losses"]} == {"changed", "missed", "missed_share"}
    assert runs[0]["losses"]["changed"] == 0
    assert "entity_f1" in runs[0]["scores"]
    shown = run("bench", home / "ner", "--data", home / "texts.csv", "--repeats", 1, "--limit", 5)
    assert shown.exit_code == 0, shown.output


def test_export_calibrates_a_tagger_on_texts_without_tags(home: Path, ask: Ask) -> None:
    made = ask(
        *("export", home / "ner", "--precision", "int8", "--out", home / "calibrated"),
        *("--data", home / "texts.csv", "--guarantee", 0.5, "--risk", "missed"),
    )
    assert made["certificate"]["examples"] == 120  # without those that the scales were found on
    stored = ModelInfo.read(home / "calibrated").policy
    assert stored is not None
    assert stored.certificate is not None
    assert stored.certificate.risk == OF_TAGS["missed"]
