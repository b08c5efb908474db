"""Words with tags, from CoNLL files, tables with lists, and data sets."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from offramp.cli.rows import read_rows
from offramp.data import Task
from offramp.errors import BadData

WORDS = [["Ann", "lives", "in", "New", "York"], ["Bye", "🙂"]]
TAGS = [["B-PER", "O", "O", "B-LOC", "I-LOC"], ["O", "O"]]
NAMES = ("B-LOC", "B-PER", "I-LOC", "O")
TABS = """# sent_id = 1
Ann	NNP	B-PER
lives	VBZ	O
in	IN	O
New	NNP	B-LOC
York	NNP	I-LOC


Bye	UH	O
🙂 	UH	O
"""
SPACES = "-DOCSTART- -X- O\n\nAnn B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n\nBye O\n🙂 O"


def check(task: Task) -> None:
    data = task.load("train")["train"]
    assert (task.problem, task.labels, task.metrics) == ("token_classification", NAMES, ("entity_f1",))
    assert data["text"] == [" ".join(words) for words in WORDS]
    assert data["words"] == WORDS
    assert [[NAMES[tag] for tag in tags] for tags in data["label"]] == TAGS
    assert data.features["label"].feature.names == list(NAMES)


@pytest.mark.parametrize(
    "content", [TABS, TABS.replace("\n", "\r\n"), SPACES], ids=["tabs", "crlf", "spaces"]
)
@pytest.mark.parametrize("ending", [".conll", ".bio", ".iob"])
def test_conll_files_have_words_first_and_tags_last(ending: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / f"train{ending}"
    file.write_text(content, encoding="utf-8", newline="")
    check(Task.from_files(train=file))


@pytest.mark.parametrize("names", [("tokens", "ner_tags"), ("words", "tags"), ("tokens", "labels")])
def test_tables_of_lists_have_words_and_tags(names: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    rows = [dict(zip(names, row, strict=True)) for row in zip(WORDS, TAGS, strict=True)]
    file.write_text("\n".join(map(json.dumps, rows)))
    check(Task.from_files(train=file))


def test_data_sets_have_tags_as_classes() -> None:
    indices = [[NAMES.index(tag) for tag in tags] for tags in TAGS]
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=list(NAMES))),
        }
    )
    check(Task.from_dataset(datasets.Dataset.from_dict({"tokens": WORDS, "ner_tags": indices}, features)))


def test_columns_of_texts_and_labels_come_before_those_of_words_and_tags(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    rows = [{"text": text, "words": [text], "label": text, "tags": ["x"]} for text in ("good", "bad")]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert Task.from_files(train=file).problem == "single_label_classification"


def test_a_conll_file_can_be_read_as_texts(tmp_path: Path) -> None:
    file = tmp_path / "texts.conll"
    file.write_text(SPACES, encoding="utf-8")
    assert [row.text for row in read_rows(file, None, None)] == [" ".join(words) for words in WORDS]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Ann\tB-PER\nlives\n", "line 2: expected 2 columns, a word and its tag, found 1"),
        ("Ann\nlives\n", "line 1: expected 2 columns, a word and its tag, found 1"),
        ("Ann\tO\n\n \tO\nx\tB-A\n", "line 3: a word without characters"),
        ("Ann\tO\n", "the only label is O, expected at least two"),
    ],
)
def test_a_damaged_conll_file_is_reported_with_its_line(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "train.conll"
    file.write_text(content)
    with pytest.raises(BadData, match=message):
        Task.from_files(train=file).load()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "1 tag for 2 words, expected one for each"),
        ({"tokens": ["a"], "ner_tags": "O"}, "expected a list of names"),
        ({"tokens": [], "ner_tags": []}, "no words"),
        ({"tokens": ["a", 3], "ner_tags": ["O", "O"]}, "a word without characters"),
        ({"tokens": "a b", "ner_tags": ["O", "O"]}, "expected a list of its words"),
    ],
)
def test_damaged_rows_are_reported(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(map(json.dumps, [{"tokens": ["x", "y"], "ner_tags": ["B-A", "O"]}, row])))
    with pytest.raises(BadData, match=message):
        Task.from_files(train=file).load()


def test_tags_of_another_scheme_than_the_tasks_are_an_error(tmp_path: Path) -> None:
    train, validation = tmp_path / "train.conll", tmp_path / "validation.conll"
    train.write_text("Ann\tB-PER\nran\tO\n")
    validation.write_text("Ann\tS-PER\n")
    with pytest.raises(BadData, match="label 'S-PER', expected one of B-PER, O"):
        Task.from_files(train=train, validation=validation).load()
