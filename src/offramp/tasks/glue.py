"""The tasks of GLUE (Wang et al. 2018, arXiv:1804.07461), as its files and the hub hold them.

Labels stand in the order of the older scripts, whatever numbers the hub gives them. MRPC and QQP are headed
by F1, STS-B by Spearman's correlation. MNLI is two tasks that share their training data, so that results and
predictions on matched and mismatched genres are kept apart.
"""

from pathlib import Path

from offramp.problems import REGRESSION
from offramp.tasks.base import NLI, Task
from offramp.tasks.files import Columns, Hub, Table

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

PARAPHRASE_METRICS = ("f1", "acc", "acc_and_f1")
SIMILARITY_METRICS = ("spearmanr", "pearson", "corr")

HUB = "nyu-mll/glue"


def tables(train: Columns, test: Columns, header: bool = True) -> dict[str, Table]:
    """The three files that most tasks have; `header` is that of the labelled ones."""
    return {
        "train": Table(Path("train.tsv"), train, header),
        "validation": Table(Path("dev.tsv"), train, header),
        "test": Table(Path("test.tsv"), test),
    }


def hub(config: str, text: str, text_pair: str | None = None, numbered: bool = False) -> dict[str, Hub]:
    columns = Columns(text, text_pair, "label", "idx")
    return {split: Hub(HUB, config, split, columns, numbered) for split in ("train", "validation", "test")}


def mnli(name: str, genres: str, submission: str) -> Task:
    labelled, test = Columns(8, 9, label=-1), Columns(8, 9, idx=0)
    named = Columns("premise", "hypothesis", "label", "idx")
    return Task(
        name=name,
        labels=NLI,
        metrics=("acc",),
        layout={
            "train": Table(Path("train.tsv"), labelled),
            "validation": Table(Path(f"dev_{genres}.tsv"), labelled),
            "test": Table(Path(f"test_{genres}.tsv"), test),
        },
        splits={
            "train": Hub(HUB, "mnli", "train", named),
            "validation": Hub(HUB, "mnli", f"validation_{genres}", named),
            "test": Hub(HUB, "mnli", f"test_{genres}", named),
        },
        aliases=("MNLI", submission, f"mnli_{genres}"),
        submission=submission,
    )


GLUE = [
    Task(
        name="cola",
        labels=BINARY,
        metrics=("mcc",),
        layout=tables(Columns(3, label=1), Columns(1, idx=0), header=False),
        splits=hub("cola", "sentence", numbered=True),
        aliases=("CoLA",),
        submission="CoLA",
    ),
    Task(
        name="sst-2",
        labels=BINARY,
        metrics=("acc",),
        layout=tables(Columns(0, label=1), Columns(1, idx=0)),
        splits=hub("sst2", "sentence", numbered=True),
        aliases=("SST-2",),
        submission="SST-2",
    ),
    Task(
        name="mrpc",
        labels=BINARY,
        metrics=PARAPHRASE_METRICS,
        layout=tables(Columns(3, 4, label=0), Columns(3, 4, idx=0)),
        splits=hub("mrpc", "sentence1", "sentence2", numbered=True),
        aliases=("MRPC",),
        submission="MRPC",
    ),
    Task(
        name="sts-b",
        labels=None,
        problem_type=REGRESSION,
        metrics=SIMILARITY_METRICS,
        layout=tables(Columns(7, 8, label=-1), Columns(7, 8, idx=0)),
        splits=hub("stsb", "sentence1", "sentence2"),
        aliases=("STS-B",),
        submission="STS-B",
    ),
    Task(
        name="qqp",
        labels=BINARY,
        metrics=PARAPHRASE_METRICS,
        layout=tables(Columns(3, 4, label=5), Columns(1, 2, idx=0)),
        splits=hub("qqp", "question1", "question2", numbered=True),
        aliases=("QQP",),
        submission="QQP",
    ),
    mnli("mnli", "matched", submission="MNLI-m"),
    mnli("mnli-mm", "mismatched", submission="MNLI-mm"),
    Task(
        name="qnli",
        labels=ENTAILMENT,
        metrics=("acc",),
        layout=tables(Columns(1, 2, label=-1), Columns(1, 2, idx=0)),
        splits=hub("qnli", "question", "sentence"),
        aliases=("QNLI",),
        submission="QNLI",
    ),
    Task(
        name="rte",
        labels=ENTAILMENT,
        metrics=("acc",),
        layout=tables(Columns(1, 2, label=-1), Columns(1, 2, idx=0)),
        splits=hub("rte", "sentence1", "sentence2"),
        aliases=("RTE",),
        submission="RTE",
    ),
    Task(
        name="wnli",
        labels=BINARY,
        metrics=("acc",),
        layout=tables(Columns(1, 2, label=-1), Columns(1, 2, idx=0)),
        splits=hub("wnli", "sentence1", "sentence2", numbered=True),
        aliases=("WNLI",),
        submission="WNLI",
    ),
    Task(
        name="ax",
        labels=NLI,
        metrics=("mcc",),
        layout={"test": Table(Path("diagnostic.tsv"), Columns(1, 2, idx=0))},
        splits={"test": Hub(HUB, "ax", "test", Columns("premise", "hypothesis", "label", "idx"))},
        aliases=("AX", "diagnostic"),
        submission="AX",
    ),
]
