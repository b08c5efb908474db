"""What `offramp predict --out` writes: every text once, with its columns."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from typer.testing import Result

from offramp.cli.command import print_to
from offramp.models.exit_model import ExitModel

Run = Callable[..., Result]


def read(file: Path) -> list[dict[str, Any]]:
    with file.open(encoding="utf-8", newline="") as lines:
        if file.suffix == ".jsonl":
            return [json.loads(line) for line in lines]
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_line_break_inside_a_text_stays_inside_its_row(
    trained: Path, tmp_path: Path, run: Run, end: str
) -> None:
    texts = [f"a good film{end}not a bad plot", "bad"]
    source = tmp_path / "texts.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    assert run("predict", trained / "films", source, "--out", tmp_path / "o.csv").exit_code == 0
    assert [row["text"] for row in read(tmp_path / "o.csv")] == texts


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_predictions_keep_the_columns_of_the_input(
    trained: Path, tmp_path: Path, run: Run, ending: str
) -> None:
    (tmp_path / "in.csv").write_text("id,sentence,label\nx7,a good film,yes\nx8,bad,no\n")
    out = tmp_path / f"out.{ending}"
    assert run("predict", trained / "films", tmp_path / "in.csv", "--out", out).exit_code == 0
    rows = read(out)
    assert [row["id"] for row in rows] == ["x7", "x8"]
    assert [row["sentence"] for row in rows] == ["a good film", "bad"]
    assert [row["input_label"] for row in rows] == ["yes", "no"]
    assert {row["label"] for row in rows} <= {"yes", "no"}


def test_a_table_of_a_multi_label_model_has_a_column_for_each_label(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path, run: Run
) -> None:
    model = make_model(labels=["joy", "anger, rage"], problem_type="multi_label_classification")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text("good film\nbad\n")
    for ending in ("csv", "jsonl"):
        done = run("predict", tmp_path / "model", tmp_path / "in.txt", "--out", tmp_path / f"out.{ending}")
        assert done.exit_code == 0, done.output
    table, records = read(tmp_path / "out.csv"), read(tmp_path / "out.jsonl")
    for name in ("joy", "anger, rage"):
        columns = [float(row[f"probability_{name}"]) for row in table]
        assert columns == [record["probabilities"][name] for record in records]


def test_force_replaces_an_output(trained: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("of yesterday")
    assert run("predict", trained / "films", trained / "dev.csv", "--out", out, "--force").exit_code == 0
    assert len(read(out)) == 60


def test_a_safe_csv_has_no_formulas(trained: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "in.csv").write_text("text,@note\n=cmd(),+1\ngood,-\n")
    out = tmp_path / "out.csv"
    assert run("predict", trained / "films", tmp_path / "in.csv", "--out", out, "--safe-csv").exit_code == 0
    assert [(row["text"], row["'@note"]) for row in read(out)] == [("'=cmd()", "'+1"), ("good", "'-")]


@pytest.mark.parametrize("terminal", [True, False])
def test_control_characters_are_shown_on_a_terminal_and_kept_elsewhere(terminal: bool) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    print_to(stream, "a\x1b[31m\tb\x9b\nc")
    assert stream.getvalue() == ("a\\u001b[31m\tb\\u009b\nc\n" if terminal else "a\x1b[31m\tb\x9b\nc\n")
