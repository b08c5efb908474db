from pathlib import Path

import pytest

from offramp.data import Task
from offramp.errors import BadData


def test_lines_of_imdb_keep_their_quotes_and_commas(tmp_path: Path) -> None:
    lines = ["text,label", '"A ""fine"" film, truly",1', '"Dull, 0/10",0', "Unquoted, too,1"]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    data = Task.named("imdb", folder=tmp_path).load("train")["train"]
    assert data["text"] == ['A "fine" film, truly', "Dull, 0/10", "Unquoted, too"]
    assert data["label"] == [1, 0, 1]


def test_lines_of_imdb_without_label_are_dropped_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text,label\n"A broken\nline, here",1\n"Fine",0\n')
    with pytest.raises(BadData, match=r"train\.csv, line 2: expected 2 columns, found 1"):
        Task.named("imdb", folder=tmp_path).load("train")
    with pytest.warns(UserWarning, match="dropped 1 bad row,"):
        assert len(Task.named("imdb", folder=tmp_path, bad_rows="drop").load("train")["train"]) == 2


def test_lines_of_newsgroups_keep_commas_in_the_text(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("label,text\nrec.autos,brakes, wheels, doors\n")
    data = Task.named("news20", folder=tmp_path).load("train")["train"]
    assert data["text"] == ["brakes, wheels, doors"]


def test_labels_of_snli_are_in_the_order_of_elbert(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label\ta\tb\n" + "".join(f"{label}\tx\ty\n" for label in "012"))
    assert Task.named("snli", folder=tmp_path).load("train")["train"]["label"] == [2, 0, 1]
