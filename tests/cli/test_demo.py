"""The demo, on a tiny encoder and a few rows, offline."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offramp import Certificate, Classifier, Trace
from offramp.cli.demo import DemoSettings, read, split, summary
from offramp.cli.demo import run as run_demo
from offramp.reports.table import short

QUICK = DemoSettings(epochs=2, learning_rate=5e-3, epsilon=0.6, repeats=1)


@pytest.fixture
def inputs(tmp_path: Path, save_encoder: Callable[..., Path]) -> dict[str, Path]:
    """An encoder, and sentences as the package has them, from two sources."""
    sentences = tmp_path / "reviews.csv"
    with sentences.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "source"])
        for row in range(150):
            words = ("a very good film " if row % 2 else "not a good film ") + "plot " * (row % 4)
            table.writerow([words, row % 2, "rotten_tomatoes" if row % 3 else "imdb"])
    return {"encoder": save_encoder(tmp_path / "encoder"), "sentences": sentences, "out": tmp_path / "out"}


def test_the_demo_trains_calibrates_and_reports(inputs: dict[str, Path]) -> None:
    out = inputs["out"]
    results = run_demo(**inputs, settings=QUICK)
    assert results["examples"] == {"train": 80, "calibration": 10, "test": 10}
    full, early = results["test"]
    assert full["mean_layer"] == 4 > early["mean_layer"]
    trace = Trace.load(out / "test.trace")
    assert full["scores"]["acc"] == results["accuracy_by_layer"][-1]
    stored = Classifier.from_pretrained(out / "run/model").policy
    assert early["mean_layer"] == pytest.approx(stored.exits(trace.logits).mean())
    assert json.loads((out / "results.json").read_text()) == results
    shown = summary(results, out)
    for part in (
        short(results["policy"]),
        Certificate.from_json(results["certificate"]).summary,
        "report.html",
        "offramp predict",
    ):
        assert part in shown
    assert (out / "report/report.html").is_file()
    assert str(stored) == results["policy"]
    assert results["certificate"]["rules_tried"] == 5


def test_splits_are_disjoint_and_from_one_source(inputs: dict[str, Path]) -> None:
    files = split(inputs["sentences"], inputs["out"], seed=0)
    again = split(inputs["sentences"], inputs["out"] / "again", seed=0)
    rows = [row for file in files.values() for row in read(file)]
    assert len(rows) == 100
    assert {row["label"] for row in rows} == {"negative", "positive"}
    assert [read(file) for file in files.values()] == [read(file) for file in again.values()]
    assert [row["label"] == "positive" for row in rows] == ["very" in row["text"] for row in rows]


def test_a_second_run_reuses_the_first(inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_demo(**inputs, settings=QUICK)
    monkeypatch.setattr("transformers.Trainer.train", forbidden)
    monkeypatch.setattr("offramp.collector.collect", forbidden)
    second = run_demo(**inputs, settings=QUICK)
    for name in ("policy", "certificate", "accuracy_by_layer"):
        assert second[name] == first[name]


def forbidden(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("repeated work")


def test_without_a_safe_threshold_only_full_depth_is_measured(inputs: dict[str, Path]) -> None:
    results = run_demo(**inputs, settings=DemoSettings(epochs=1, epsilon=0.01, repeats=1))
    assert results["policy"] is None
    assert [row["policy"] for row in results["test"]] == ["never"]
    assert "cannot prove" in summary(results, inputs["out"])


def test_a_missing_package_is_reported_before_any_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.setattr("offramp.cli.demo_assets.subprocess.run", forbidden)
    result = run("demo", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "the demo needs torch: pip install 'offramp[train,plot]'" in result.stderr
    assert not (tmp_path / "out").exists()
