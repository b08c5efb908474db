"""Tasks from the hub; `datasets.load_dataset` is replaced and serves small sets with the hub's columns."""

from typing import Any

import datasets
import pytest

from offramp.data import TASKS, Task
from offramp.errors import BadData

NLI = ["entailment", "neutral", "contradiction"]
Served = dict[tuple[str, str | None, str], datasets.Dataset]


def split(labels: list[Any], names: list[str] | None = None, **texts: str) -> datasets.Dataset:
    columns: dict[str, Any] = {column: [text] * len(labels) for column, text in texts.items()}
    columns |= {"label": labels, "idx": list(range(len(labels)))}
    data = datasets.Dataset.from_dict(columns)
    return data if names is None else data.cast_column("label", datasets.ClassLabel(names=names))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Served:
    served: Served = {}

    def load_dataset(path: str, config: str | None = None, split: str | None = None) -> Any:
        if split is not None:
            return served[path, config, split]
        found = {key[2]: data for key, data in served.items() if key[:2] == (path, config)}
        return datasets.DatasetDict(found)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return served


def test_labels_are_mapped_by_name_where_the_hub_has_another_order(hub: Served) -> None:
    texts = {"premise": "A dog.", "hypothesis": "A cat."}
    hub["nyu-mll/glue", "mnli", "train"] = split([0, 1, 2], NLI, **texts)
    hub["nyu-mll/glue", "mnli", "validation_matched"] = split([2], NLI, **texts)
    hub["nyu-mll/glue", "mnli", "validation_mismatched"] = split([1], NLI, **texts)
    for genres in ("matched", "mismatched"):
        hub["nyu-mll/glue", "mnli", f"test_{genres}"] = split([-1, -1], NLI, **texts)
    matched, mismatched = TASKS["mnli"].load(), TASKS["mnli-mm"].load()
    names = matched["train"].features["label"].names
    assert names == ["contradiction", "entailment", "neutral"]
    assert [names[label] for label in matched["train"]["label"]] == NLI
    assert [names[label] for label in matched["validation"]["label"]] == ["contradiction"]
    assert [names[label] for label in mismatched["validation"]["label"]] == ["neutral"]


def test_a_hub_split_whose_labels_are_all_minus_one_has_no_labels(hub: Served) -> None:
    hub["nyu-mll/glue", "ax", "test"] = split([-1, -1], NLI, premise="A dog.", hypothesis="A cat.")
    data = TASKS["ax"].load()["test"]
    assert data.column_names == ["text", "text_pair", "idx"]
    assert data["idx"] == [0, 1]


def test_scores_that_are_all_minus_one_are_no_labels(hub: Served) -> None:
    hub["nyu-mll/glue", "stsb", "test"] = split([-1.0, -1.0], sentence1="A dog.", sentence2="A cat.")
    assert "label" not in TASKS["sts-b"].load("test")["test"].column_names


def test_labels_that_the_hub_names_and_the_task_numbers_are_mapped_by_number(hub: Served) -> None:
    hub["nyu-mll/glue", "wnli", "train"] = split(
        [1, 0], ["not_entailment", "entailment"], sentence1="A dog.", sentence2="A cat."
    )
    assert TASKS["wnli"].load("train")["train"]["label"] == [1, 0]


def test_a_score_on_the_hub_stays_a_number(hub: Served) -> None:
    hub["nyu-mll/glue", "stsb", "train"] = split([3.25, 0.5], sentence1="A dog.", sentence2="A cat.")
    assert TASKS["sts-b"].load("train")["train"]["label"] == [3.25, 0.5]


def test_a_row_without_label_among_labelled_ones_is_a_bad_row(hub: Served) -> None:
    hub["stanfordnlp/snli", None, "train"] = split([2, -1, 0], NLI, premise="A dog.", hypothesis="A cat.")
    with pytest.raises(BadData, match=r"stanfordnlp/snli train, row 2: no label.*pass bad_rows='drop'"):
        Task.named("elue/snli", bad_rows="error").load("train")
    with pytest.warns(UserWarning, match=r"dropped 1 bad row,.*snli train, row 2: no label"):
        data = Task.named("elue/snli").load("train")  # the hub's rows cannot be fixed
    assert data["train"]["label"] == [2, 0]


def test_labels_with_other_names_on_the_hub_are_translated(hub: Served) -> None:
    hub["allenai/scitail", "tsv_format", "train"] = split(
        ["neutral", "entails"], premise="A dog.", hypothesis="A cat."
    )
    assert TASKS["elue/scitail"].load("train")["train"]["label"] == [1, 0]


def test_any_data_set_of_the_hub_is_a_task(hub: Served) -> None:
    hub["someone/feelings", None, "train"] = split([0, 2], ["joy", "anger", "fear"], text="oh")
    hub["someone/feelings", None, "test"] = split([1], ["joy", "anger", "fear"], text="ah")
    task = Task.from_hub("someone/feelings", validation="test", test="none")
    assert task.labels == ("joy", "anger", "fear")
    assert task.load()["validation"][0] == {"text": "ah", "label": 1, "idx": 0}


def test_lists_of_labels_on_the_hub_keep_their_names(hub: Served) -> None:
    names = datasets.List(datasets.ClassLabel(names=["joy", "anger", "fear"]))
    data = datasets.Dataset.from_dict({"text": ["oh", "ah"], "labels": [[2, 0], []]})
    hub["someone/moods", None, "train"] = data.cast_column("labels", names)
    task = Task.from_hub("someone/moods")
    assert (task.problem, task.labels) == ("multi_label_classification", ("joy", "anger", "fear"))
    assert task.load()["train"]["label"] == [[1, 0, 1], [0, 0, 0]]


def test_a_test_split_on_the_hub_may_lack_the_label_column(hub: Served) -> None:
    hub["someone/feelings", None, "train"] = split([0, 1], ["joy", "anger"], text="oh")
    hub["someone/feelings", None, "test"] = datasets.Dataset.from_dict({"text": ["ah"]})
    assert Task.from_hub("someone/feelings").load()["test"].column_names == ["text", "idx"]


def test_a_data_set_without_the_usual_splits_is_an_error_with_its_own(hub: Served) -> None:
    hub["someone/feelings", None, "all"] = split([0], ["joy", "anger"], text="oh")
    with pytest.raises(BadData, match=r"someone/feelings has no split train, validation, test; it has all"):
        Task.from_hub("someone/feelings")


def test_a_column_that_the_hub_lacks_is_an_error(hub: Served) -> None:
    hub["nyu-mll/glue", "sst2", "train"] = split([0], ["negative", "positive"], text="oh")
    with pytest.raises(BadData, match=r"nyu-mll/glue sst2 train: no column named 'sentence'"):
        TASKS["sst-2"].load("train")


def test_an_unreachable_hub_points_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        BadData, match=r"nyu-mll/glue cola train from the hub: no route.*use downloaded files"
    ):
        TASKS["cola"].load()


def test_a_loaded_data_set_is_a_task() -> None:
    rows = split([0, 2], ["joy", "anger", "fear"], text="oh")
    task = Task.from_dataset(datasets.DatasetDict(train=rows, dev=rows), validation="dev")
    assert (task.labels, list(task.splits)) == (("joy", "anger", "fear"), ["train", "validation"])
    assert task.load()["validation"]["label"] == [0, 2]
    alone = Task.from_dataset(split(["yes", "no"], text="oh"))
    assert (alone.labels, list(alone.splits)) == (("no", "yes"), ["train"])


def test_an_error_in_a_loaded_data_set_names_its_row() -> None:
    rows = datasets.Dataset.from_dict({"text": ["oh", None], "label": ["yes", "no"]})
    with pytest.raises(BadData, match=r"reviews train, row 2: empty text.*bad_rows='drop'"):
        Task.from_dataset(rows, name="reviews").load()


def test_a_stream_is_refused_with_what_to_do() -> None:
    stream: Any = split([0, 1], text="oh").to_iterable_dataset()
    with pytest.raises(BadData, match=r"IterableDataset is not a datasets\.Dataset.*without streaming"):
        Task.from_dataset(stream)


def test_formatted_columns_are_read_as_they_are_stored() -> None:
    rows = split([0, 1], ["no", "yes"], text="oh").with_format("numpy")
    assert Task.from_dataset(rows).load()["train"]["label"] == [0, 1]
