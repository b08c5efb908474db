"""Which files and columns are read, and the tables made of them."""

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from offramp.cluster.input_files import find_texts
from offramp.errors import BadData, BadOption


def test_a_file_gives_its_texts_in_order_with_line_and_id(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('ID,Sentence1,Sentence2\n7,"two\nlines",b\n8,c,d\n')
    found, _ = find_texts(file, None, None, None)
    (table,) = found.tables(file)
    assert table.to_pylist() == [
        {"file": "a.csv", "row": 2, "text": "two\nlines", "text_pair": "b", "ID": "7"},
        {"file": "a.csv", "row": 4, "text": "c", "text_pair": "d", "ID": "8"},
    ]
    assert found.count(file) == 2


def test_the_tables_of_a_long_file_hold_all_its_rows_in_order(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    rows = [f"text {number}" for number in range(2500)]
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), file)
    table = pyarrow.concat_tables(find_texts(file, None, None, None)[0].tables(file))
    assert table["text"].to_pylist() == rows
    assert table["row"].to_pylist() == [*range(1, 2501)]
    assert table.column_names == ["file", "row", "text"]


def test_ids_of_any_kind_become_text(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a", "key": 1}\n{"text": "b", "key": "two"}\n{"text": "c"}\n')
    (table,) = find_texts(file, None, None, "key")[0].tables(file)
    assert table["key"].to_pylist() == ["1", "two", None]


def test_missing_columns_are_reported_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,key\na,1\n")
    for named in [("words", None, None), ("text", "other", None), (None, None, "ID")]:
        with pytest.raises(BadData, match=r"a\.csv: no column named .* expected one of text, key"):
            find_texts(tmp_path, *named)


def test_a_folder_may_hold_only_what_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no files that end in"):
        find_texts(tmp_path, None, None, None)
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "_done.json").write_text("{}")
    assert find_texts(tmp_path, None, None, None)[1] == [tmp_path / "a.csv"]
    (tmp_path / "b.csv.gz").write_text("")
    with pytest.raises(BadOption, match=r"b\.csv\.gz: expected only"):
        find_texts(tmp_path, None, None, None)
    with pytest.raises(BadOption, match="no such file or folder"):
        find_texts(tmp_path / "gone", None, None, None)
