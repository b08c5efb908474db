"""offramp predict --ray, and offramp bench --project: as in Python, said to people and machines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import ray
from typer.testing import Result

from offramp.classifier import Classifier
from offramp.cost import Measured, project

Run = Callable[..., Result]
Ask = Callable[..., Any]


def test_a_cluster_of_its_own_answers_as_one_process_and_is_gone_afterwards(
    trained: Path, tmp_path: Path, ask: Ask
) -> None:
    file, out = trained / "dev.csv", tmp_path / "out"
    flags = ["--workers", 1, "--policy", "patience:1", "--max-layer", 3]
    values = ask("predict", trained / "films", "--data", file, "--ray", "--out", out, *flags)
    assert not ray.is_initialized()
    rows = sorted(pyarrow.parquet.read_table(out).to_pylist(), key=lambda row: row["row"])
    texts = [line.split(",")[0] for line in file.read_text().splitlines()[1:]]
    expected = Classifier.from_pretrained(trained / "films/model", "patience:1").predict(texts, max_layer=3)
    assert [row["row"] for row in rows] == [*range(2, 62)]
    assert [(row["label"], row["layer"]) for row in rows] == [(each.label, each.layer) for each in expected]
    assert json.loads((out / "_done.json").read_text()).items() <= values.items()
    assert (values["texts"], values["workers"], values["policy"]) == (60, 1, "patience:1,max_layer=3")


@pytest.mark.parametrize(
    ("line", "parts"),
    {
        "predict films --ray --out x": ["file or a folder"],
        "predict films dev.csv --ray": ["--out FOLDER"],
        "predict films dev.csv auto": ["auto", "--ray"],
        "predict films dev.csv more auto --ray --data dev.csv --out x": ["auto"],
        "predict films dev.csv --ray --out films": ["films", "choose another"],
        "predict films gone.csv --ray --out x": ["gone.csv", "no such file"],
        "predict films dev.csv --ray --text words --out x": ["'words'", "text, label"],
        "predict films dev.csv --ray 127.0.0.1:1 --out x": ["no cluster can be joined at 127.0.0.1:1"],
        "predict films --ray 127.0.0.1:1 dev.csv --out x": ["no cluster can be joined at 127.0.0.1:1"],
        "predict films --data dev.csv --ray 127.0.0.1:1 --out x": ["no cluster can be joined at 127.0.0.1:1"],
        "bench films --data dev.csv --policy layer:1 --repeats 1 --project 9 --hours 0": ["hours=0"],
    }.items(),
)
def test_a_mistake_is_one_line(
    trained: Path, monkeypatch: pytest.MonkeyPatch, run: Run, line: str, parts: list[str]
) -> None:
    monkeypatch.chdir(trained)
    result = run(*line.split())
    assert result.exit_code in (1, 2)
    said = [each for each in result.stderr.splitlines() if each.startswith("offramp: ")]
    assert all(part in result.stderr for part in parts)
    assert len(said) == (result.exit_code == 1)
    assert not (trained / "x").exists()


def test_bench_projects_by_the_cost_it_measured_and_says_what_it_assumed(
    trained: Path, ask: Ask, run: Run
) -> None:
    asked = ["bench", trained / "films", "--data", trained / "dev.csv", "--policy", "layer:1", "--threads", 1]
    values = ask(*asked, "--repeats", 1, "--project", "1e9", "--hours", 12, "--price-per-core-hour", 0.5)
    found = values["projection"]
    assert found["texts"] == 1e9
    assert found["measured"]["cores"] == 1
    assumed = {"hours": 12, "cores_per_machine": 16, "price_per_core_hour": 0.5}
    assert found["assumed"] == {**assumed, "mean_tokens": found["measured"]["mean_tokens"]}
    for timed, run_of_many in zip(values["runs"], found["runs"], strict=True):
        measured = Measured(timed["seconds"], 1, 60, timed["mean_layer"], found["assumed"]["mean_tokens"])
        expected = project(measured, 1e9, **found["assumed"])
        assert run_of_many["core_hours"] == pytest.approx(expected.core_hours)
        assert run_of_many["core_hours"] == pytest.approx(1e9 / timed["texts_per_second"] / 3600)
        assert (run_of_many["machines"], run_of_many["money"]) == (expected.machines, expected.money)
    shown = run(*asked, "--repeats", 1, "--project", "1e9", "--tokens", 200).stdout
    assert "200.0 tokens" in shown
    assert "0.05 for a core-hour (no quote" in shown
