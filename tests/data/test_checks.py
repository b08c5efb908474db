"""Bad files: the error names the file, the line, and what was expected."""

import warnings
from pathlib import Path

import pytest

from offramp.data import Task
from offramp.errors import BadData


def sst2(folder: Path, train: str, test: str | None = None, bad_rows: str = "error") -> Task:
    files = {"train.tsv": train, "dev.tsv": "sentence\tlabel\nfine .\t1\n", "test.tsv": test}
    for name, content in files.items():
        if content is not None:
            (folder / name).write_bytes(content.encode())
    return Task.named("sst-2", folder=folder, bad_rows=bad_rows)


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("sentence\tlabel\ngood\t1\nbad\n", r"line 3: expected 2 columns, found 1"),
        ("sentence\tlabel\ngood\t1\nbad\tso bad\t0\n", r"line 3: expected 2 columns, found 3"),
        ("sentence\tlabel\ngood\t1\n\nbad\t0\n", r"line 3: expected 2 columns, found 1"),
        ("sentence\tlabel\ngood\t1\n  \t0\n", r"line 3: empty text"),
        ("sentence\tlabel\ngood\t1\nbad\t\n", r"line 3: no label"),
        ("sentence\tlabel\ngood\t1\nbad\tawful\n", r"line 3: label 'awful', expected one of 0, 1"),
        ("sentence\ngood\nbad\n", r"line 1: expected at least 2 columns, found 1"),
        ("good\t1\nbad\t0\n", r"line 1: expected a header .* found an example"),
        ("sentence\tlabel\n", r"no examples"),
        ("", r"the file is empty"),
    ],
)
def test_a_bad_row_is_an_error_that_names_file_line_and_what_was_expected(
    train: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=r"train\.tsv.*" + problem):
        sst2(tmp_path, train).load()


def test_invalid_utf8_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    task = sst2(tmp_path, "")
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\ngood\t1\nb\xe4d\t0\n")
    with pytest.raises(BadData, match=r"train\.tsv, line 3: not UTF-8"):
        task.load()


def test_a_word_where_a_number_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("s1\ts2\tscore\nA dog.\tA cat.\t3.5\nA bird.\tA bee.\tsimilar\n")
    task = Task.named("elue/sts-b", folder=tmp_path)
    with pytest.raises(BadData, match=r"train\.tsv, line 3: label 'similar', expected a number"):
        task.load("train")


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_score_must_be_finite(number: str, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(f"s1\ts2\tscore\nA dog.\tA cat.\t{number}\n")
    with pytest.raises(BadData, match=rf"line 2: label '{number}', expected a number"):
        Task.named("elue/sts-b", folder=tmp_path).load("train")


def test_dropped_rows_are_counted_in_a_warning_and_the_others_stay(tmp_path: Path) -> None:
    task = sst2(tmp_path, "sentence\tlabel\ngood\t1\nbad\n\t0\nugly\t0\n", bad_rows="drop")
    with pytest.warns(
        UserWarning, match=r"dropped 2 bad rows, the first at .*train\.tsv, line 3: expected 2"
    ):
        data = task.load()
    assert data["train"]["text"] == ["good", "ugly"]
    assert data["train"]["label"] == [1, 0]


def test_good_files_load_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(sst2(tmp_path, "sentence\tlabel\ngood\t1\n", bad_rows="drop").load()["train"]) == 1


def test_an_unknown_label_is_never_dropped(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"line 3: label 'awful'"):
        sst2(tmp_path, "sentence\tlabel\ngood\t1\nbad\tawful\n", bad_rows="drop").load()


@pytest.mark.parametrize("row", ["1\t", "1"])
def test_a_row_of_a_test_set_is_never_dropped(row: str, tmp_path: Path) -> None:
    task = sst2(tmp_path, "sentence\tlabel\ngood\t1\n", f"index\tsentence\n0\tfine\n{row}\n", bad_rows="drop")
    with pytest.raises(BadData, match=r"test\.tsv, line 3: .* Every row of a test set needs a prediction"):
        task.load()


def test_an_index_must_be_a_whole_number(tmp_path: Path) -> None:
    task = sst2(tmp_path, "sentence\tlabel\ngood\t1\n", "index\tsentence\n0\tfine\nfirst\tfine\n")
    with pytest.raises(BadData, match=r"test\.tsv, line 3: index 'first', expected a whole number"):
        task.load()


def test_a_test_set_that_lost_its_header_is_refused(tmp_path: Path) -> None:
    task = sst2(tmp_path, "sentence\tlabel\ngood\t1\n", "0\tfine\n1\tfine\n")
    with pytest.raises(BadData, match=r"test\.tsv, line 1: expected a header .* found an example"):
        task.load()


def test_an_unknown_way_to_treat_bad_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"bad_rows='skip', expected error or drop"):
        sst2(tmp_path, "sentence\tlabel\ngood\t1\n", bad_rows="skip").load()


def test_quotes_and_carriage_returns_inside_a_text_do_not_shift_rows(tmp_path: Path) -> None:
    train = 'sentence\tlabel\r\n" unclosed\t1\r\na\rb\t0\r\nline\u2028separator\x0b\t1\r\n""\t0'
    data = sst2(tmp_path, train).load()
    assert data["train"]["text"] == ['" unclosed', "a\rb", "line\u2028separator\x0b", '""']
    assert data["train"]["label"] == [1, 0, 1, 0]


def rows_file(folder: Path, rows: list[tuple[str, str]]) -> Path:
    file = folder / "rows.csv"
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return file


def test_labels_that_look_like_ids_need_a_confirmation(tmp_path: Path) -> None:
    file = rows_file(tmp_path, [(f"film {row}", str(1000 + row)) for row in range(30)])
    message = (
        r"rows\.csv: the labels look like ids: 30 rows have 30 different ones.*problem_type='regression'"
    )
    with pytest.raises(BadData, match=message):
        Task.from_files(train=file)
    assert len(Task.from_files(train=file, problem_type="single_label_classification").labels or ()) == 30
    assert Task.from_files(train=file, problem_type="regression").labels is None


def test_columns_that_look_swapped_need_a_confirmation(tmp_path: Path) -> None:
    file = rows_file(
        tmp_path, [(f"what a fine film {row % 25}", ["good", "bad"][row % 2]) for row in range(30)]
    )
    with pytest.raises(BadData, match=r"look swapped: a label is 'what a fine film 0', its text 'good'"):
        Task.from_files(train=file, text="label", label="text")
    assert Task.from_files(train=file).labels == ("bad", "good")


def test_many_classes_with_few_examples_are_no_ids(tmp_path: Path) -> None:
    file = rows_file(tmp_path, [(f"film {row}", f"intent {row % 20}") for row in range(30)])
    assert len(Task.from_files(train=file).labels or ()) == 20
    few = rows_file(tmp_path, [("good", "yes"), ("bad", "no"), ("fine", "maybe")])
    assert len(Task.from_files(train=few).labels or ()) == 3
