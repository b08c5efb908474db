"""offramp predict-files gives the predictions of one process, and its usage errors are one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import ray
from typer.testing import Result

from offramp.inference import Classifier

Run = Callable[..., Result]
Ask = Callable[..., Any]


def test_a_local_cluster_predicts_as_one_process_and_is_stopped_afterwards(
    trained: Path, tmp_path: Path, ask: Ask
) -> None:
    file, out = trained / "dev.csv", tmp_path / "out"
    flags = ["--workers", 1, "--policy", "patience:1", "--max-layer", 3]
    values = ask("predict-files", trained / "films", file, "--out", out, *flags)
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
        "predict-files films --out x": ["source"],
        "predict-files films dev.csv": ["--out"],
        "predict-files films dev.csv --out x --workers 0": ["--workers"],
        "predict-files films dev.csv --out films": ["films", "choose another"],
        "predict-files films gone.csv --out x": ["gone.csv", "no such file"],
        "predict-files films pairs.csv --out x": ["a pair of texts", "trained on single texts"],
        "predict-files films dev.csv --max-length 2 --out x": ["--max-length 2", "at least 8"],
        "predict-files films dev.csv --device warp --out x": ["--device warp", "cannot be used"],
        "predict-files films dev.csv --text words --out x": ["'words'", "text, label"],
        "predict-files films dev.csv --address 127.0.0.1:1 --out x": ["cannot connect", "127.0.0.1:1"],
    }.items(),
)
def test_a_usage_error_is_one_line(
    trained: Path, monkeypatch: pytest.MonkeyPatch, run: Run, line: str, parts: list[str]
) -> None:
    monkeypatch.chdir(trained)
    (trained / "pairs.csv").write_text("text,text_pair\na film,a plot\n")
    result = run(*line.split())
    assert result.exit_code in (1, 2)
    errors = [each for each in result.stderr.splitlines() if each.startswith("offramp: ")]
    assert all(part in result.stderr for part in parts)
    assert len(errors) == (result.exit_code == 1)
    assert not (trained / "x").exists()
