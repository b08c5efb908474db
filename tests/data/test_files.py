"""The user's own files: every format gives the same rows, with columns named or guessed."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from offramp.data import Task
from offramp.data.files import guess_columns, read_file
from offramp.errors import BadData, UnknownName

ROWS = [
    {"text": 'He said "no", twice', "label": "bad"},
    {"text": "Fine", "label": "good"},
    {"text": "So, so", "label": "bad"},
]


def write(folder: Path, ending: str, rows: list[dict[str, Any]], name: str = "train") -> Path:
    path = folder / f"{name}{ending}"
    columns = list(rows[0])
    if ending == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == ".tsv":
        path.write_text("\n".join("\t".join(map(str, cells)) for cells in [columns, *map(dict.values, rows)]))
    else:
        quoted = [['"' + str(cell).replace('"', '""') + '"' for cell in row.values()] for row in rows]
        path.write_text("\n".join(",".join(cells) for cells in [columns, *quoted]) + "\n")
    return path


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_examples(ending: str, tmp_path: Path) -> None:
    task = Task.from_files(train=write(tmp_path, ending, ROWS))
    data = task.load()["train"]
    assert data["text"] == [row["text"] for row in ROWS]
    assert data["label"] == [0, 1, 0]
    assert (task.labels, task.headline) == (("bad", "good"), "acc")
    assert task.problem == "single_label_classification"


def test_a_header_of_csv_may_have_a_very_long_cell(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(f"text,label,{'x' * 200_000}\na good film,yes,1\na bad film,no,2\n")
    assert Task.from_files(train=path).load()["train"]["text"][:] == ["a good film", "a bad film"]


def test_csv_cells_may_span_lines_and_errors_name_the_first(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('text,label\n"two\nlines",a\n"fine",b\nshort\n')
    with pytest.raises(BadData, match=r"train\.csv, line 5: expected 2 columns, found 1"):
        Task.from_files(train=path).load()
    path.write_text('text,label\n"two\nlines",a\n"fine",b\n')
    assert Task.from_files(train=path).load()["train"]["text"] == ["two\nlines", "fine"]


def test_a_csv_cell_may_exceed_the_default_limit_of_the_csv_module(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    book = "word " * limit
    rows = [{"text": book, "label": "a"}, {"text": "short", "label": "b"}]
    data = Task.from_files(train=write(tmp_path, ".csv", rows)).load()
    assert data["train"]["text"][0] == book
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "text,label,text\none,a,two\n"), ("a.tsv", "text\tlabel\ttext\none\ta\ttwo\n")],
)
def test_columns_must_have_different_names(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=r"two columns are named 'text'; rename"):
        Task.from_files(train=tmp_path / name)


def test_columns_without_a_name_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,,\none,a,,\ntwo,b,,\n")
    assert Task.from_files(train=tmp_path / "a.csv").load()["train"]["text"] == ["one", "two"]


def test_columns_can_be_named(tmp_path: Path) -> None:
    rows = [{"title": "x", "body": "one", "kind": "a"}, {"title": "y", "body": "two", "kind": "b"}]
    path = write(tmp_path, ".csv", rows)
    task = Task.from_files(train=path, text="body", text_pair="title", label="kind")
    assert task.load()["train"][1] == {"text": "two", "text_pair": "y", "label": 1, "idx": 1}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Text", "Label"], ("Text", None, "Label")),
        (["id", "premise", "hypothesis", "label"], ("premise", "hypothesis", "label")),
        (["question1", "question2", "target"], ("question1", "question2", "target")),
        (["question", "sentence", "label"], ("question", "sentence", "label")),
        (["review", "stars", "sentiment"], ("review", None, "sentiment")),
    ],
)
def test_columns_with_usual_names_are_guessed(names: list[str], expected: tuple[str | None, ...]) -> None:
    columns = guess_columns("a.csv", names)
    assert (columns.text, columns.text_pair, columns.label) == expected


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (["body", "label"], "text"),
        (["text", "review", "label"], "text"),
        (["text", "label", "score"], "label"),
    ],
)
def test_a_column_that_cannot_be_guessed_is_an_error_with_the_candidates(names: list[str], role: str) -> None:
    with pytest.raises(
        BadData, match=rf"a\.csv: which column is the {role}\? Pass {role}=\.\.\., one of {names[0]}"
    ):
        guess_columns("a.csv", names)


def test_a_named_column_that_is_missing_is_an_error_with_the_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"train\.csv: no column named 'body', expected one of text, label"):
        Task.from_files(train=write(tmp_path, ".csv", ROWS), text="body")


def test_validation_needs_the_columns_of_train(tmp_path: Path) -> None:
    validation = write(tmp_path, ".csv", [{"text": "one"}], "validation")
    with pytest.raises(BadData, match=r"validation\.csv: no column named 'label', expected one of text"):
        Task.from_files(train=write(tmp_path, ".csv", ROWS), validation=validation).load()


def test_a_test_file_may_lack_labels(tmp_path: Path) -> None:
    test = write(tmp_path, ".csv", [{"text": "one"}], "test")
    data = Task.from_files(train=write(tmp_path, ".csv", ROWS), test=test).load()
    assert data["test"].column_names == ["text", "idx"]


def test_a_validation_label_that_train_lacks_is_an_error(tmp_path: Path) -> None:
    validation = write(tmp_path, ".csv", [{"text": "one", "label": "odd"}], "validation")
    with pytest.raises(BadData, match=r"validation\.csv, line 2: label 'odd', expected one of bad, good"):
        Task.from_files(train=write(tmp_path, ".csv", ROWS), validation=validation).load()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_numbered_labels_are_in_the_order_of_numbers(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in (10, 2, 1)]
    task = Task.from_files(train=write(tmp_path, ending, rows))
    assert task.labels == ("1", "2", "10")
    assert task.load()["train"]["label"] == [2, 1, 0]


def test_labels_can_be_given_in_the_model_order(tmp_path: Path) -> None:
    task = Task.from_files(train=write(tmp_path, ".csv", ROWS), labels=["good", "bad"])
    assert task.load()["train"]["label"] == [1, 0, 1]


def test_labels_must_have_different_names(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="two labels are named 'bad'"):
        Task.from_files(train=write(tmp_path, ".csv", ROWS), labels=["good", "bad", " bad"])


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_spaces_around_a_label_are_ignored(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in ("good", " good", "bad ", "bad")]
    path = write(tmp_path, ending, rows)
    for task in (Task.from_files(train=path), Task.from_files(train=path, labels=["bad", "good "])):
        assert task.labels == ("bad", "good")
        assert task.load()["train"]["label"] == [1, 1, 0, 0]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), None])
def test_nan_and_infinity_are_missing_labels(nothing: float | None, ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in (0.0, nothing, 1.0)]
    path = write(tmp_path, ending, rows)
    task = Task.from_files(train=path)
    assert task.labels == ("0", "1")
    with pytest.raises(BadData, match="2: no label"):
        task.load()
    with pytest.warns(UserWarning, match="dropped 1 bad row,"):
        kept = Task.from_files(train=path, bad_rows="drop").load()["train"]
    assert kept["label"] == [0, 1]


def test_a_missing_score_does_not_turn_regression_into_classification(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,score\nt,0.5\nt,\nt,3\n")
    task = Task.from_files(train=tmp_path / "a.csv")
    assert task.problem == "regression"
    with pytest.raises(BadData, match="line 3: no label"):
        task.load()


@pytest.mark.parametrize(
    "label", [{"name": "a"}, [{"name": "a"}], [["a"]], [None]], ids=["dict", "dicts", "lists", "none"]
)
def test_a_label_must_be_a_name_or_a_number(label: Any, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label}, {"text": "t", "label": "b"}]
    with pytest.raises(BadData, match=r"line 1: label .* expected a name or a number"):
        Task.from_files(train=write(tmp_path, ".jsonl", rows))


@pytest.mark.parametrize(
    ("metrics", "labels", "problem"),
    [
        (["accuracy"], ["bad", "good"], "no metric named 'accuracy'; did you mean acc"),
        (["acc", "f1"], ["bad", "fair", "good"], "f1 is for binary classification.*macro_f1"),
        (["acc_and_f1"], ["bad", "fair", "good"], "acc_and_f1 is for binary classification"),
    ],
)
def test_an_unknown_or_unsuitable_metric_is_refused_at_once(
    metrics: list[str], labels: list[str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UnknownName, match=problem):
        Task.from_files(train=write(tmp_path, ".csv", ROWS), labels=labels, metrics=metrics)


def test_f1_is_for_binary_classification(tmp_path: Path) -> None:
    assert Task.from_files(train=write(tmp_path, ".csv", ROWS), metrics=["f1"]).headline == "f1"


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_numbers_with_fractions_are_regression(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "score": score} for score in (0.5, 3.0)]
    task = Task.from_files(train=write(tmp_path, ending, rows))
    assert (task.problem, task.labels, task.headline) == ("regression", None, "pearson")
    assert task.load()["train"]["label"] == [0.5, 3.0]


@pytest.mark.parametrize("cell", ["n/a", "nan"])
def test_a_word_among_fractions_is_an_error_unless_they_are_declared_class_names(
    cell: str, tmp_path: Path
) -> None:
    rows = [{"text": "t", "score": score} for score in ("0.5", "3.0", cell)]
    file = write(tmp_path, ".csv", rows)
    with pytest.raises(BadData, match=f"line 4: label '{cell}', expected a number"):
        Task.from_files(train=file)
    named = Task.from_files(train=file, problem_type="single_label_classification")
    assert len(named.labels or ()) == 3


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_lists_make_a_multi_label_task(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "labels": labels} for labels in (["b", "a"], [], ["c"])]
    task = Task.from_files(train=write(tmp_path, ending, rows))
    assert (task.problem, task.labels, task.headline) == (
        "multi_label_classification",
        ("a", "b", "c"),
        "micro_f1",
    )
    assert task.load()["train"]["label"] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_a_separator_makes_a_multi_label_task(tmp_path: Path) -> None:
    rows = [{"text": "t", "labels": labels} for labels in ("b | a", "", "c")]
    task = Task.from_files(train=write(tmp_path, ".csv", rows), separator="|")
    assert task.load()["train"]["label"] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_multi_hot_rows_are_not_taken_for_label_names(tmp_path: Path) -> None:
    rows = [{"text": "t", "labels": [1, 0, 1]}, {"text": "t", "labels": [0, 0, 1]}]
    with pytest.raises(BadData, match=r"line 1: labels \['1', '0', '1'\], expected each name at most once"):
        Task.from_files(train=write(tmp_path, ".jsonl", rows)).load()


def test_multi_label_cells_need_a_list_or_a_separator(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", ROWS)
    with pytest.raises(
        BadData, match=r"line 2: label 'bad', expected a list of names; for text, pass separator="
    ):
        Task.from_files(train=path, problem_type="multi_label_classification")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", '{"text": "t", "label": 1}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"text": "t", "label": 1}\n["t", 1]\n', r"a\.jsonl, line 2: expected an object"),
        ("a.jsonl", '{"text": "t", "label": 1}\n{"label": 0}\n', r"a\.jsonl, line 2: empty text"),
        ("a.jsonl", '{"text": "t", "label": 1}\n{"text": 3, "label": 0}\n', r"a\.jsonl, line 2: 3 as text"),
        ("a.csv", 'text,label\n"t" x,1\n', r"a\.csv, line 2: not CSV"),
        ("a.csv", "text,label\nt,1\nt,1\n", r"a\.csv: the only label is 1, expected at least two"),
        ("a.parquet", "text,label\n", r"a\.parquet: not a Parquet file"),
        (
            "a.md",
            "text,label\n",
            r"a\.md: expected a file that ends in \.txt, \.csv, \.tsv, \.jsonl, \.parquet",
        ),
    ],
)
def test_an_unreadable_file_is_an_error_with_the_reason(
    name: str, content: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=problem):
        Task.from_files(train=tmp_path / name).load()


def test_a_missing_file_and_no_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"none\.csv: no such file"):
        Task.from_files(train=tmp_path / "none.csv")
    with pytest.raises(BadData, match="no files; pass train="):
        Task.from_files()


def test_an_unknown_problem_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownName, match=r"problem_type='ranking' is not one of single_label_classification"
    ):
        Task.from_files(train=write(tmp_path, ".csv", ROWS), problem_type="ranking")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_inferring_and_loading_a_task_reads_each_file_once(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read_bytes, read_table = Path.read_bytes, pyarrow.parquet.read_table

    def count(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        return lambda path: (opened.append(path.name), read(path))[1]

    files = {split: write(tmp_path, ending, ROWS, split) for split in ("train", "validation")}
    monkeypatch.setattr(Path, "read_bytes", count(read_bytes))
    monkeypatch.setattr(pyarrow.parquet, "read_table", count(read_table))
    task = Task.from_files(**files)
    assert len(task.load("train", "validation")["validation"]) == len(ROWS)
    assert sorted(opened) == [f"train{ending}", f"validation{ending}"]


def test_the_rows_of_a_file_do_not_fill_its_repr(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", ROWS)
    assert "Fine" not in repr(Task.from_files(train=path)) + repr(read_file(path))


def test_labels_that_are_joined_are_not_taken_for_a_class(tmp_path: Path) -> None:
    rows = [("who", "HUM"), ("where", "LOC"), ("who and where", "HUM|LOC")]
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["text,label", *(",".join(row) for row in rows)]))
    with pytest.raises(BadData, match=r"'HUM\|LOC' consists of other labels; pass separator='\|'"):
        Task.from_files(train=file)
    several = Task.from_files(train=file, separator="|")
    assert (several.labels, several.problem) == (("HUM", "LOC"), "multi_label_classification")
    assert Task.from_files(train=file, labels=["HUM", "LOC", "HUM|LOC"]).labels == ("HUM", "LOC", "HUM|LOC")


def test_categories_stay_beside_their_texts_where_bad_rows_are_dropped(tmp_path: Path) -> None:
    rows = [("a film", "good", "en"), ("", "bad", "fr"), ("ein Film", "bad", "de")]
    named = [dict(zip(("text", "label", "category"), row, strict=True)) for row in rows]
    task = Task.from_files(write(tmp_path, ".csv", named), category="category", bad_rows="drop")
    with pytest.warns(UserWarning, match="dropped 1 bad row"):
        columns = task.columns("train")
    assert (columns["text"], columns["category"]) == (["a film", "ein Film"], ["en", "de"])
    with pytest.warns(UserWarning, match="dropped 1 bad row"):
        assert "category" not in task.load("train")["train"].column_names


def test_a_category_that_no_column_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no column named 'tongue', expected one of text, label"):
        Task.from_files(write(tmp_path, ".csv", ROWS), category="tongue")
