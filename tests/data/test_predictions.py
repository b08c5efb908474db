"""Two files of predictions: how their rows are joined and how a fault is placed."""

import json
from pathlib import Path

import pytest

from offramp.data.predictions import Columns, read_pair
from offramp.errors import BadData


def write(file: Path, *rows: dict[str, object]) -> Path:
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


def test_long_ids_that_differ_in_the_last_digit_are_different_rows(tmp_path: Path) -> None:
    first, second = {"id": 2**60, "label": "a"}, {"id": 2**60 + 1, "label": "b"}
    old, new = write(tmp_path / "old.jsonl", first, second), write(tmp_path / "new.jsonl", second, first)
    pair = read_pair(old, new, Columns())
    assert pair.old.tolist() == pair.new.tolist() == ["a", "b"]


def test_ids_and_labels_of_a_csv_match_the_numbers_of_a_jsonl_file(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("id,label\n1,0\n2,1\n", encoding="utf-8")
    new = write(tmp_path / "new.jsonl", {"id": 2.0, "label": 1}, {"id": 1.0, "label": 0})
    pair = read_pair(old, new, Columns())
    assert pair.old.tolist() == pair.new.tolist() == ["0", "1"]


def test_ids_of_one_file_alone_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", {"id": 1, "label": "a"}, {"id": 2, "label": "b"})
    new = write(tmp_path / "new.jsonl", {"label": "a"}, {"label": "b"})
    for first, second in ((old, new), (new, old)):
        with pytest.warns(UserWarning, match=r"old\.jsonl has the column id and .*new\.jsonl has not"):
            pair = read_pair(first, second, Columns())
        assert pair.old.tolist() == pair.new.tolist() == ["a", "b"]


def test_a_fault_in_a_parquet_file_is_placed_by_row(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    for name, labels in (("old", ["a", "b"]), ("new", ["a", None])):
        parquet.write_table(pyarrow.table({"label": labels}), tmp_path / f"{name}.parquet")
    with pytest.raises(BadData, match=r"new\.parquet, row 2: no label"):
        read_pair(tmp_path / "old.parquet", tmp_path / "new.parquet", Columns())
