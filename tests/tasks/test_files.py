"""A person's own files: the same rows come out of every format, with columns named or guessed."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from offramp.errors import BadData, UnknownName
from offramp.tasks import Task
from offramp.tasks.files import guess

ROWS = [
    {"text": 'He said "no", twice', "label": "bad"},
    {"text": "Fine", "label": "good"},
    {"text": "So, so", "label": "bad"},
]


def written(folder: Path, ending: str, rows: list[dict[str, Any]], name: str = "train") -> Path:
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
    task = Task.from_files(train=written(tmp_path, ending, ROWS))
    data = task.load()["train"]
    assert data["text"] == [row["text"] for row in ROWS]
    assert data["label"] == [0, 1, 0]
    assert (task.labels, task.headline) == (("bad", "good"), "acc")
    assert task.problem_type == "single_label_classification"


def test_cells_of_csv_may_span_lines_and_errors_name_the_first(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('text,label\n"two\nlines",a\n"fine",b\nshort\n')
    with pytest.raises(BadData, match=r"train\.csv, line 5: 1 columns, expected 2"):
        Task.from_files(train=path).load()
    path.write_text('text,label\n"two\nlines",a\n"fine",b\n')
    assert Task.from_files(train=path).load()["train"]["text"] == ["two\nlines", "fine"]


def test_a_cell_of_csv_may_be_as_long_as_a_book(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    book = "word " * limit
    rows = [{"text": book, "label": "a"}, {"text": "short", "label": "b"}]
    data = Task.from_files(train=written(tmp_path, ".csv", rows)).load()
    assert data["train"]["text"][0] == book
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "text,label,text\none,a,two\n"), ("a.tsv", "text\tlabel\ttext\none\ta\ttwo\n")],
)
def test_two_columns_of_one_name_are_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=r"two columns are named 'text'.*Rename"):
        Task.from_files(train=tmp_path / name)


def test_columns_without_a_name_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,,\none,a,,\ntwo,b,,\n")
    assert Task.from_files(train=tmp_path / "a.csv").load()["train"]["text"] == ["one", "two"]


def test_columns_can_be_named(tmp_path: Path) -> None:
    rows = [{"title": "x", "body": "one", "kind": "a"}, {"title": "y", "body": "two", "kind": "b"}]
    path = written(tmp_path, ".csv", rows)
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
    columns = guess("a.csv", names)
    assert (columns.text, columns.text_pair, columns.label) == expected


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (["body", "label"], "text"),
        (["text", "review", "label"], "text"),
        (["text", "label", "score"], "label"),
    ],
)
def test_columns_that_cannot_be_guessed_are_asked_for_by_name(names: list[str], role: str) -> None:
    with pytest.raises(BadData, match=rf"a\.csv: which column is the {role}\? Say {role}=.*{names[0]}"):
        guess("a.csv", names)


def test_a_column_that_is_named_but_missing_is_an_error_with_those_there(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"train\.csv: no column named 'body', expected one of text, label"):
        Task.from_files(train=written(tmp_path, ".csv", ROWS), text="body")


def test_validation_must_have_the_columns_of_training(tmp_path: Path) -> None:
    validation = written(tmp_path, ".csv", [{"text": "one"}], "validation")
    with pytest.raises(BadData, match=r"validation\.csv: no column named 'label', expected one of text"):
        Task.from_files(train=written(tmp_path, ".csv", ROWS), validation=validation).load()


def test_a_test_file_may_lack_labels(tmp_path: Path) -> None:
    test = written(tmp_path, ".csv", [{"text": "one"}], "test")
    data = Task.from_files(train=written(tmp_path, ".csv", ROWS), test=test).load()
    assert data["test"].column_names == ["text", "idx"]


def test_a_label_of_validation_that_training_lacks_is_an_error(tmp_path: Path) -> None:
    validation = written(tmp_path, ".csv", [{"text": "one", "label": "odd"}], "validation")
    with pytest.raises(BadData, match=r"validation\.csv, line 2: label 'odd', expected one of bad, good"):
        Task.from_files(train=written(tmp_path, ".csv", ROWS), validation=validation).load()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_numbered_labels_are_in_the_order_of_numbers(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in (10, 2, 1)]
    task = Task.from_files(train=written(tmp_path, ending, rows))
    assert task.labels == ("1", "2", "10")
    assert task.load()["train"]["label"] == [2, 1, 0]


def test_labels_can_be_given_in_the_order_of_a_model(tmp_path: Path) -> None:
    task = Task.from_files(train=written(tmp_path, ".csv", ROWS), labels=["good", "bad"])
    assert task.load()["train"]["label"] == [1, 0, 1]


def test_two_labels_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="two labels are named 'bad'"):
        Task.from_files(train=written(tmp_path, ".csv", ROWS), labels=["good", "bad", " bad"])


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_spaces_around_a_label_do_not_make_another(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in ("good", " good", "bad ", "bad")]
    path = written(tmp_path, ending, rows)
    for task in (Task.from_files(train=path), Task.from_files(train=path, labels=["bad", "good "])):
        assert task.labels == ("bad", "good")
        assert task.load()["train"]["label"] == [1, 1, 0, 0]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), None])
def test_a_number_that_is_none_is_no_label(nothing: float | None, ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in (0.0, nothing, 1.0)]
    path = written(tmp_path, ending, rows)
    task = Task.from_files(train=path)
    assert task.labels == ("0", "1")
    with pytest.raises(BadData, match="2: no label"):
        task.load()
    with pytest.warns(UserWarning, match="dropped 1 rows"):
        kept = Task.from_files(train=path, bad_rows="drop").load()["train"]
    assert kept["label"] == [0, 1]


def test_a_score_that_is_missing_does_not_make_classes_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,score\nt,0.5\nt,\nt,3\n")
    task = Task.from_files(train=tmp_path / "a.csv")
    assert task.problem_type == "regression"
    with pytest.raises(BadData, match="line 3: no label"):
        task.load()


@pytest.mark.parametrize(
    "label", [{"name": "a"}, [{"name": "a"}], [["a"]], [None]], ids=["dict", "dicts", "lists", "none"]
)
def test_a_label_that_is_no_name_is_refused(label: Any, tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label}, {"text": "t", "label": "b"}]
    with pytest.raises(BadData, match=r"line 1: label .* expected a name or a number"):
        Task.from_files(train=written(tmp_path, ".jsonl", rows))


@pytest.mark.parametrize(
    ("metrics", "labels", "problem"),
    [
        (["accuracy"], ["bad", "good"], "no metric named accuracy; have mcc, acc"),
        (["acc", "f1"], ["bad", "fair", "good"], "f1 is for two classes.*macro_f1"),
        (["acc_and_f1"], ["bad", "fair", "good"], "acc_and_f1 is for two classes"),
    ],
)
def test_a_metric_that_does_not_exist_or_fit_is_refused_at_once(
    metrics: list[str], labels: list[str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UnknownName, match=problem):
        Task.from_files(train=written(tmp_path, ".csv", ROWS), labels=labels, metrics=metrics)


def test_f1_is_for_two_classes(tmp_path: Path) -> None:
    assert Task.from_files(train=written(tmp_path, ".csv", ROWS), metrics=["f1"]).headline == "f1"


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_numbers_with_fractions_are_regression(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "score": score} for score in (0.5, 3.0)]
    task = Task.from_files(train=written(tmp_path, ending, rows))
    assert (task.problem_type, task.labels, task.headline) == ("regression", None, "pearson")
    assert task.load()["train"]["label"] == [0.5, 3.0]


@pytest.mark.parametrize("cell", ["n/a", "nan"])
def test_a_word_among_numbers_with_fractions_is_named_and_no_class(cell: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "score": score} for score in ("0.5", "3.0", cell)]
    file = written(tmp_path, ".csv", rows)
    with pytest.raises(BadData, match=f"line 4: label '{cell}', expected a number"):
        Task.from_files(train=file)
    named = Task.from_files(train=file, problem_type="single_label_classification")
    assert len(named.labels or ()) == 3


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_lists_are_many_labels(ending: str, tmp_path: Path) -> None:
    rows = [{"text": "t", "labels": labels} for labels in (["b", "a"], [], ["c"])]
    task = Task.from_files(train=written(tmp_path, ending, rows))
    assert (task.problem_type, task.labels, task.headline) == (
        "multi_label_classification",
        ("a", "b", "c"),
        "micro_f1",
    )
    assert task.load()["train"]["label"] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_a_separator_divides_many_labels(tmp_path: Path) -> None:
    rows = [{"text": "t", "labels": labels} for labels in ("b | a", "", "c")]
    task = Task.from_files(train=written(tmp_path, ".csv", rows), separator="|")
    assert task.load()["train"]["label"] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_rows_of_marks_are_not_taken_for_names_of_labels(tmp_path: Path) -> None:
    rows = [{"text": "t", "labels": [1, 0, 1]}, {"text": "t", "labels": [0, 0, 1]}]
    with pytest.raises(BadData, match=r"line 1: labels \['1', '0', '1'\], expected each name at most once"):
        Task.from_files(train=written(tmp_path, ".jsonl", rows)).load()


def test_many_labels_need_a_list_or_a_separator(tmp_path: Path) -> None:
    path = written(tmp_path, ".csv", ROWS)
    with pytest.raises(BadData, match=r"line 2: label 'bad', expected a list of names, or say separator="):
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
        ("a.txt", "text,label\n", r"a\.txt: expected a file that ends in \.csv, \.tsv, \.jsonl, \.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_the_reason(
    name: str, content: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=problem):
        Task.from_files(train=tmp_path / name).load()


def test_a_missing_file_and_no_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"none\.csv: no such file"):
        Task.from_files(train=tmp_path / "none.csv")
    with pytest.raises(BadData, match="no files: say train="):
        Task.from_files()


def test_an_unknown_problem_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"problem_type='ranking', expected one of single_label_classification"):
        Task.from_files(train=written(tmp_path, ".csv", ROWS), problem_type="ranking")
