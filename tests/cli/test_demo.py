"""The demo, on a tiny encoder and a few rows, offline."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offramp import Certificate, Classifier
from offramp.cli.demo import DemoSettings, split
from offramp.cli.demo import run as run_demo

QUICK = DemoSettings(train=100, epochs=1, learning_rate=5e-3, guarantee=0.3)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., Path]) -> dict[str, Path]:
    """An encoder, and sentences as the package has them, from two sources."""
    home = tmp_path_factory.mktemp("demo")
    with (home / "reviews.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "source"])
        for row in range(600):
            words = ("a very good film " if row % 2 else "not a good film ") + "plot " * (row % 7)
            table.writerow([words, row % 2, "rotten_tomatoes" if row % 3 else "imdb"])
    return {
        "encoder": save_encoder(home / "encoder", layers=2),
        "sentences": home / "reviews.csv",
        "out": home / "out",
    }


@pytest.fixture(scope="module")
def done(inputs: dict[str, Path]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offramp.retrofits.comparison.REPEATS", 1)
        return run_demo(**inputs, settings=QUICK)


def test_the_demo_compares_plain_transformers_onnx_int8_and_offramp(done: Any) -> None:
    names = [row["name"] for row in done.results["comparison"]]
    assert names == ["transformers", "fp32, full depth", "int8, full depth", "offramp"]
    assert all(0 <= row["scores"]["acc"] <= 1 for row in done.results["comparison"])
    certificate = Certificate.from_json(done.results["certificate"])
    assert certificate.reference == "my-classifier"
    assert certificate.summary in str(done)
    assert Classifier.from_pretrained(done.folder).predict("a very good film").label in (
        "negative",
        "positive",
    )


def test_texts_of_the_retrofit_were_not_used_for_fine_tuning(inputs: dict[str, Path], done: Any) -> None:
    labelled, others = split(inputs["sentences"], QUICK)
    assert len(labelled) == 100
    assert len(others) == 300
    assert sum(done.results["texts"].values()) == 300
    assert (labelled, others) == split(inputs["sentences"], QUICK)


def test_a_second_run_reuses_the_first(
    inputs: dict[str, Path], done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.Trainer.train", forbidden)
    assert run_demo(**inputs, settings=QUICK).results == done.results


def forbidden(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("repeated work")


def test_a_missing_package_is_reported_before_any_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.setattr("offramp.cli.demo_assets.subprocess.run", forbidden)
    result = run("demo", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "the demo needs torch: pip install 'offramp[train]'" in result.stderr
    assert not (tmp_path / "out").exists()
