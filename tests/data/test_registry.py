"""Every built-in task loads from a folder with the layout of its files, written out by hand."""

from pathlib import Path
from typing import Any

import pytest

from offramp.data import TASKS, Task
from offramp.data.metrics import METRICS
from offramp.errors import BadData, UnknownName

PAIRS_BY_INDEX = {
    "train.tsv": "index\ts1\ts2\tlabel\n0\tA dog.\tA cat.\t{0}\n1\tA bird.\tA bee.\t{1}\n",
    "dev.tsv": "index\ts1\ts2\tlabel\n0\tA tree.\tA bush.\t{1}\n",
    "test.tsv": "index\ts1\ts2\n7\tA road.\tA path.\n",
}
MNLI_TEST = "index id gid b1 b2 p1 p2 genre s1 s2".replace(" ", "\t")
MNLI_TRAIN = f"{MNLI_TEST}\tlabel1\tgold_label"
MNLI_DEV = f"{MNLI_TEST}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label"
MNLI = {
    "train.tsv": f"{MNLI_TRAIN}\n"
    "0\ti\tg\tb\tb\tp\tp\tfiction\tA dog.\tA cat.\tneutral\tcontradiction\n"
    "1\ti\tg\tb\tb\tp\tp\tfiction\tA bird.\tA bee.\tneutral\tneutral\n",
    "dev_matched.tsv": f"{MNLI_DEV}\n0\ti\tg\tb\tb\tp\tp\tf\tA tree.\tA bush.\tn\tn\tn\tn\tn\tneutral\n",
    "dev_mismatched.tsv": f"{MNLI_DEV}\n0\ti\tg\tb\tb\tp\tp\tf\tA tree.\tA bush.\tn\tn\tn\tn\tn\tneutral\n",
    "test_matched.tsv": f"{MNLI_TEST}\n7\ti\tg\tb\tb\tp\tp\tf\tA road.\tA path.\n",
    "test_mismatched.tsv": f"{MNLI_TEST}\n7\ti\tg\tb\tb\tp\tp\tf\tA road.\tA path.\n",
}
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2".replace(" ", "\t")
MRPC_TEXTS = "#1 ID\t#2 ID\t#1 String\t#2 String"
MRPC = {
    "train.tsv": f"\ufeffQuality\t{MRPC_TEXTS}\n0\t1\t2\tA dog.\tA cat.\n1\t3\t4\tA bird.\tA bee.\n",
    "dev.tsv": f"\ufeffQuality\t{MRPC_TEXTS}\n1\t1\t2\tA tree.\tA bush.\n",
    "test.tsv": f"index\t{MRPC_TEXTS}\n7\t1\t2\tA road.\tA path.\n",
}
SST2 = {
    "train.tsv": "sentence\tlabel\nA dog.\t0\nA bird.\t1\n",
    "dev.tsv": "sentence\tlabel\nA tree.\t1\n",
    "test.tsv": "index\tsentence\n7\tA road.\n",
}
ELUE_PAIRS = {
    "train.tsv": "s1\ts2\tlabel\nA dog.\tA cat.\t{0}\nA bird.\tA bee.\t{1}\n",
    "dev.tsv": "s1\ts2\tlabel\nA tree.\tA bush.\t{1}\n",
    "test.tsv": "index\ts1\ts2\n7\tA road.\tA path.\n",
}
LABEL_AND_TEXT = {
    "train.tsv": "label\ttext\n{0}\tA dog.\n{1}\tA bird.\n",
    "test.tsv": "label\ttext\n{1}\tA tree.\n",
}


def filled(files: dict[str, str], *labels: str) -> dict[str, str]:
    return {name: content.format(*labels) for name, content in files.items()}


FOLDERS: dict[str, dict[str, str]] = {
    "cola": {
        "train.tsv": "gj04\t0\t*\tA dog.\ngj04\t1\t\tA bird.\n",
        "dev.tsv": "gj04\t1\t\tA tree.",
        "test.tsv": "index\tsentence\n7\tA road.\n",
    },
    "sst-2": SST2,
    "mrpc": MRPC,
    "sts-b": {
        "train.tsv": f"{STSB}\tscore\n"
        "0\tg\tf\ty\t1\tn\tn\tA dog.\tA cat.\t0.500\n1\tg\tf\ty\t1\tn\tn\tA bird.\tA bee.\t3.250\n",
        "dev.tsv": f"{STSB}\tscore\n0\tg\tf\ty\t1\tn\tn\tA tree.\tA bush.\t3.250\n",
        "test.tsv": f"{STSB}\n7\tg\tf\ty\t1\tn\tn\tA road.\tA path.\n",
    },
    "qqp": {
        "train.tsv": "id\tqid1\tqid2\tq1\tq2\tis_duplicate\n"
        "9\t1\t2\tA dog.\tA cat.\t0\n8\t3\t4\tA bird.\tA bee.\t1\n",
        "dev.tsv": "id\tqid1\tqid2\tq1\tq2\tis_duplicate\n9\t1\t2\tA tree.\tA bush.\t1\n",
        "test.tsv": "id\tq1\tq2\n7\tA road.\tA path.\n",
    },
    "mnli": {name: content for name, content in MNLI.items() if "mismatched" not in name},
    "mnli-mm": {name: content for name, content in MNLI.items() if "_matched" not in name},
    "qnli": filled(PAIRS_BY_INDEX, "entailment", "not_entailment"),
    "rte": filled(PAIRS_BY_INDEX, "entailment", "not_entailment"),
    "wnli": filled(PAIRS_BY_INDEX, "0", "1"),
    "ax": {"diagnostic.tsv": "index\tsentence1\tsentence2\n7\tA road.\tA path.\n"},
    "elue/sst-2": SST2,
    "elue/imdb": SST2,
    "elue/mrpc": MRPC,
    "elue/sts-b": filled(ELUE_PAIRS, "0.500", "3.250"),
    "elue/snli": filled(ELUE_PAIRS, "0", "2"),
    "elue/scitail": filled(ELUE_PAIRS, "0", "1"),
    "snli": {
        "train.csv": "label\ts1\ts2\n1\tA dog.\tA cat.\n0\tA bird.\tA bee.\n",
        "dev.csv": "label\ts1\ts2\n0\tA tree.\tA bush.\n",
    },
    "imdb": {
        "train.csv": 'text,label\n"A dog.",0\n"A bird.",1\n',
        "test.csv": 'text,label\n"A tree.",1\n',
    },
    "ag": filled(LABEL_AND_TEXT, "0", "3"),
    "dbpedia": filled(LABEL_AND_TEXT, "0", "13"),
    "yahoo": filled(LABEL_AND_TEXT, "0", "9"),
    "yelp_f": filled(LABEL_AND_TEXT, "0", "4"),
    "news20": {
        "train.tsv": "label,text\nrec.sport.hockey,A dog.\ntalk.religion.misc,A bird.\n",
        "test.tsv": "label,text\ntalk.religion.misc,A tree.\n",
    },
    "r8": filled(LABEL_AND_TEXT, "earn", "grain"),
    "r52": filled(LABEL_AND_TEXT, "earn", "platinum"),
    "cade": filled(LABEL_AND_TEXT, "01_servicos", "12_compras_on_line"),
    "webkb": filled(LABEL_AND_TEXT, "student", "project"),
}

# where there are more than two labels; the folders above hold the first label and the last
CLASSES = {"snli": 3, "ag": 4, "dbpedia": 14, "yahoo": 10, "yelp_f": 5, "news20": 20, "r8": 8, "r52": 52}
CLASSES |= {"cade": 12, "webkb": 4, "mnli": 3, "mnli-mm": 3, "ax": 3, "elue/snli": 3}

SINGLE_TEXTS = {"cola", "sst-2", "elue/sst-2", "elue/imdb", "imdb", "ag", "dbpedia", "yahoo", "yelp_f"}
SINGLE_TEXTS |= {"news20", "r8", "r52", "cade", "webkb"}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="")
    return folder


@pytest.mark.parametrize("name", TASKS)
def test_every_task_loads_from_a_folder_with_its_layout(name: str, tmp_path: Path) -> None:
    task = Task.named(name, folder=write(tmp_path, FOLDERS[name]))
    data = task.load()
    for split, (text, second) in {
        "train": ("A dog.", "A cat."),
        "validation": ("A tree.", "A bush."),
        "test": ("A road.", "A path."),
    }.items():
        if split in data:
            row: dict[str, Any] = {"text": text} | ({} if name in SINGLE_TEXTS else {"text_pair": second})
            assert {column: data[split][0][column] for column in task.text_columns} == row
    if "test" in data:
        assert data["test"]["idx"] == [7]
        assert "label" not in data["test"].column_names
    if "train" in data:
        second_label = 3.25 if task.labels is None else CLASSES.get(name, 2) - 1
        assert data["train"]["label"] == [0.5 if task.labels is None else 0, second_label]
        assert data["validation"]["label"] == [second_label]
        assert data["train"]["idx"] == [0, 1]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_the_number_of_labels_of_its_benchmark(name: str) -> None:
    labels = TASKS[name].labels
    assert (1 if labels is None else len(labels)) == (1 if "sts-b" in name else CLASSES.get(name, 2))


@pytest.mark.parametrize(
    ("name", "headline", "metrics"),
    [
        ("cola", "mcc", {"mcc"}),
        ("sst-2", "acc", {"acc"}),
        ("mrpc", "f1", {"acc", "f1", "acc_and_f1"}),
        ("qqp", "f1", {"acc", "f1", "acc_and_f1"}),
        ("sts-b", "spearmanr", {"pearson", "spearmanr", "corr"}),
        ("mnli", "acc", {"acc"}),
        ("elue/mrpc", "f1", {"acc", "f1", "acc_and_f1"}),
        ("elue/sts-b", "spearmanr", {"pearson", "spearmanr", "corr"}),
        ("news20", "acc", {"acc", "macro_f1"}),
    ],
)
def test_tasks_have_the_metrics_of_their_benchmark(name: str, headline: str, metrics: set[str]) -> None:
    assert TASKS[name].headline == headline
    assert set(TASKS[name].metrics) == metrics


def test_every_metric_of_every_task_exists() -> None:
    assert {metric for task in TASKS.values() for metric in task.metrics} <= set(METRICS)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("SST-2", "sst-2"),
        ("sst2", "sst-2"),
        ("glue/sst2", "sst-2"),
        ("STSB", "sts-b"),
        ("MNLI", "mnli"),
        ("mnli-m", "mnli"),
        ("MNLI-mm", "mnli-mm"),
        ("mnli_mismatched", "mnli-mm"),
        ("diagnostic", "ax"),
        ("ELUE/SST-2", "elue/sst-2"),
        ("elue/stsb", "elue/sts-b"),
        ("SciTail", "elue/scitail"),
        ("20news", "news20"),
        ("yelp", "yelp_f"),
        ("ag_news", "ag"),
    ],
)
def test_a_task_is_found_in_any_usual_spelling(spelling: str, name: str) -> None:
    assert Task.named(spelling).name == name


def test_an_unknown_task_is_an_error_with_the_closest_ones() -> None:
    with pytest.raises(UnknownName, match=r"'sst-3'; did you mean sst-2"):
        Task.named("sst-3")


@pytest.mark.parametrize("inner", ["SST-2", "sst2", "SST_2"])
def test_a_parent_folder_is_searched_for_the_task(inner: str, tmp_path: Path) -> None:
    write(tmp_path / inner, SST2)
    write(tmp_path / "MRPC", MRPC)
    assert Task.named("sst-2", folder=tmp_path).load()["validation"]["text"] == ["A tree."]


def test_both_tasks_of_mnli_share_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "MNLI", MNLI)
    for name in ("mnli", "mnli-mm"):
        assert set(Task.named(name, folder=tmp_path).load()) == {"train", "validation", "test"}


def test_a_folder_without_the_task_is_an_error_with_the_expected_files(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"no files of rte, expected train\.tsv, dev\.tsv, .* subfolder RTE"):
        Task.named("rte", folder=tmp_path)


def test_a_folder_may_lack_the_test_set(tmp_path: Path) -> None:
    write(tmp_path, {name: content for name, content in SST2.items() if name != "test.tsv"})
    assert set(Task.named("sst-2", folder=tmp_path).load()) == {"train", "validation"}


def test_a_folder_may_not_lack_the_training_set(tmp_path: Path) -> None:
    write(tmp_path, {name: content for name, content in SST2.items() if name != "train.tsv"})
    task = Task.named("sst-2", folder=tmp_path)
    with pytest.raises(BadData, match=r"train\.tsv: no such file"):
        task.load()
    assert set(task.load("validation")) == {"validation"}


def test_a_task_that_is_not_on_the_hub_needs_a_folder() -> None:
    with pytest.raises(BadData, match=r"webkb is not on the hub; pass folder="):
        TASKS["webkb"].load()


def test_a_split_that_a_task_lacks_is_refused(tmp_path: Path) -> None:
    write(tmp_path, FOLDERS["ax"])
    with pytest.raises(BadData, match=r"ax has no split 'train' here; it has test"):
        Task.named("ax", folder=tmp_path).load("train")


def test_labels_take_the_order_of_a_model_that_names_them() -> None:
    names = ("contradiction", "neutral", "entailment")
    assert Task.named("mnli").with_label_order(names, "roberta").labels == names
    assert Task.named("sts-b").with_label_order(["LABEL_0"], "roberta").labels is None


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("negative", "positive")])
def test_numbered_labels_take_any_names(names: tuple[str, ...]) -> None:
    assert Task.named("sst-2").with_label_order(names, "bert").labels == ("0", "1")


def test_a_model_without_names_has_the_order_of_the_task_unless_it_may_be_an_older_roberta() -> None:
    names = [f"LABEL_{index}" for index in range(3)]
    assert Task.named("mnli").with_label_order(names, "bert").labels == (
        "contradiction",
        "entailment",
        "neutral",
    )
    with pytest.raises(BadData, match="contradiction, neutral, entailment"):
        Task.named("ax").with_label_order(names, "roberta")
    assert Task.named("elue/snli").with_label_order(names, "roberta").labels == ("0", "1", "2")


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("yes", "no", "maybe")])
def test_labels_that_the_model_does_not_have_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(BadData, match="the labels do not match"):
        Task.named("mnli").with_label_order(names, "bert")
