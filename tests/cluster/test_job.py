"""Many workers predict as one process does, every text once, even if a worker dies; failures are reported."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from offramp.cluster import job, predict
from offramp.cluster.job import Predictor
from offramp.errors import BadData, BadOption, BadPolicy, Incompatible, MissingExtra, OutputExists, RunFailed
from offramp.inference import Classifier

POLICY = "confidence:0.775"
WORDS = [*"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film", "unheard"]


def texts(count: int, seed: int = 0) -> list[str]:
    """Distinct texts of one to twelve words."""
    return [
        " ".join(WORDS[(7 * row + 11 * place * (row // 30 + seed)) % 30] for place in range(1 + row % 12))
        for row in range(count)
    ]


def write_csv(file: Path, rows: list[str]) -> Path:
    lines = [f"{file.stem}-{number},{row}" for number, row in enumerate(rows)]
    file.write_text("\n".join(["id,text", *lines]) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of three formats, one in a subfolder, one without rows, and one that is not data."""
    home = tmp_path / "texts"
    (home / "more").mkdir(parents=True)
    write_csv(home / "a.csv", texts(300))
    write_csv(home / "none.csv", [])
    records = [{"text": text, "id": f"b-{row}"} for row, text in enumerate([*texts(40, 1), "", "\ud800 bad"])]
    (home / "b.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    table = pyarrow.table({"id": [f"c-{row}" for row in range(50)], "text": texts(50, 2)})
    pyarrow.parquet.write_table(table, home / "more/c.parquet")
    (home / "_SUCCESS").write_text("")
    return home


def expected(model: Path) -> dict[tuple[str, int], Any]:
    """Id, label, layer and score of every row, from one process."""
    read = {
        "a.csv": (texts(300), 2),
        "b.jsonl": ([*texts(40, 1), "", "\ud800 bad"], 1),
        "more/c.parquet": (texts(50, 2), 1),
    }
    classifier = Classifier.from_pretrained(model, POLICY)
    return {
        (file, first + row): (
            f"{Path(file).stem}-{row}",
            prediction.label,
            prediction.layer,
            pytest.approx(prediction.score, abs=1e-4),
        )
        for file, (rows, first) in read.items()
        for row, prediction in enumerate(classifier.predict(rows))
    }


def predictions(out: Path) -> dict[tuple[str, int], Any]:
    rows = pyarrow.parquet.read_table(out).to_pylist()
    found = {(row["file"], row["row"]): (row["id"], row["label"], row["layer"], row["score"]) for row in rows}
    assert len(found) == len(rows), "a row is predicted twice"
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of blocks from these few texts."""
    monkeypatch.setattr(job, "BLOCK", 2000)


@pytest.mark.usefixtures("cluster", "small_blocks")
def test_when_a_worker_dies_every_text_is_still_predicted_once_and_as_in_one_process(
    exported: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died, seen = tmp_path / "died", tmp_path / "seen"
    seen.mkdir()

    class DyingPredictor(Predictor):
        """One of the two workers dies after its third block, before returning it."""

        def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
            predictions = super().__call__(table)
            (seen / f"{os.getpid()}-{Path(table['file'][0].as_py()).stem}-{table['row'][0]}").touch()
            if len(list(seen.glob(f"{os.getpid()}-*"))) == 3 and not died.exists():
                died.touch()
                os._exit(1)
            return predictions

    monkeypatch.setattr(job, "Predictor", DyingPredictor)
    done = predict(exported, folder, tmp_path / "out", policy=POLICY, workers=2)
    assert died.exists()
    blocks = [file.name.split("-", 1) for file in seen.iterdir()]
    assert len({process for process, _ in blocks}) > 1
    assert len(blocks) > len({block for _, block in blocks}) > 5  # the lost block was run again
    assert predictions(tmp_path / "out") == expected(exported)
    assert len(set(done.exits)) > 1
    kept = json.loads((tmp_path / "out/_done.json").read_text())
    assert (kept["texts"], kept["files"], kept["workers"], kept["policy"]) == (392, 4, 2, POLICY)
    assert kept["exits"] == {str(layer): count for layer, count in done.exits.items()}


@pytest.mark.usefixtures("cluster")
def test_a_pytorch_model_with_max_layer_predicts_on_a_cluster_as_in_one_process(
    saved: Path, folder: Path, tmp_path: Path
) -> None:
    done = predict(saved, folder, tmp_path / "out", policy=POLICY, max_layer=3, workers=1, device="cpu")
    assert max(done.exits) == 3
    early = {place: row for place, row in expected(saved).items() if row[2] < 3}
    found = predictions(tmp_path / "out")
    assert {place: found[place] for place in early} == early
    assert len(found) == 392


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("z.csv", "id,text\n1,a\n2,b,c\n", "z.csv, line 3: expected 2 columns, found 3"),
        ("z.jsonl", '{"id": 1, "text": "a"}\n{"id": 2, "text": null}\n', "z.jsonl, line 2: no text"),
        ("z.csv", "id,words\n1,a\n", "z.csv: no column named 'text'"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line_before_any_prediction(
    saved: Path, folder: Path, tmp_path: Path, name: str, content: str, where: str
) -> None:
    (folder / name).write_text(content)
    with pytest.raises(BadData, match=where):
        predict(saved, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("when", ["__init__", "__call__"])
def test_a_failed_run_gives_the_reason_and_leaves_no_done_file(
    exported: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def fail(self: Predictor, *given: Any, **named: Any) -> None:
        raise OSError("no such model here")

    monkeypatch.setattr(job, "Predictor", type("Failing", (Predictor,), {when: fail}))
    out = tmp_path / "out"
    with pytest.raises(RunFailed, match=r"OSError: no such model here. .*out is unfinished; delete it"):
        predict(exported, folder, out, workers=1)
    assert not (out / "_done.json").exists()


def test_a_folder_that_is_not_empty_is_left_alone(saved: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "half.parquet").write_text("")
    for _ in range(2):
        with pytest.raises(OutputExists, match="already exists"):
            predict(saved, folder, out)
        (out / "_done.json").write_text("{}")  # finished or not
    assert sorted(file.name for file in out.iterdir()) == ["_done.json", "half.parquet"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "entropi:1"}, BadPolicy, "entropy"),
        ({"workers": 0}, BadOption, "at least 1"),
        ({"device": "warp"}, BadOption, "device='warp' cannot be used"),
        ({"device": "cuda:1"}, BadOption, "Ray chooses the GPU"),
        ({"id": "label"}, BadOption, "called label"),
        ({"text": "words"}, BadData, "words"),
        ({"max_layer": 9}, Incompatible, "9"),
    ],
)
def test_a_usage_error_is_raised_before_any_work(
    saved: Path, folder: Path, tmp_path: Path, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        predict(saved, folder, tmp_path / "out", **options)


@pytest.mark.usefixtures("cluster")
def test_a_gpu_for_each_worker_is_refused_by_a_cluster_without_gpus(
    saved: Path, exported: Path, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadOption, match="a GPU for each of 1 worker; the cluster has 0"):
        predict(saved, folder, tmp_path / "out", device="cuda")
    with pytest.raises(BadOption, match="an exported model"):
        predict(exported, folder, tmp_path / "out", device="cuda")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "offramp.cluster")
    with pytest.raises(MissingExtra, match=r"offramp\[ray\]"):
        importlib.import_module("offramp.cluster")
