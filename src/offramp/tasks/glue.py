"""The tasks of GLUE (Wang et al. 2018, arXiv:1804.07461), in its own files and on the hub.

Labels are in the order of the older scripts, not in the hub's. The headline metric is F1 for MRPC and QQP, and
Spearman's correlation for STS-B. MNLI is two tasks with the same training data, so that scores and predictions for
matched and mismatched genres stay apart.
"""

from collections.abc import Mapping
from pathlib import Path

from offramp.problems import REGRESSION, SINGLE_LABEL
from offramp.tasks.base import NLI, Task
from offramp.tasks.files import ColumnMap, HubSplit, LineFile, Source, hub_splits

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

ACCURACY = ("acc",)
PARAPHRASE = ("f1", "acc", "acc_and_f1")
SIMILARITY = ("spearmanr", "pearson", "corr")

SPLITS = {"train": "train", "validation": "validation", "test": "test"}


def benchmark_task(
    folder: str,
    labels: tuple[str, ...] | None,
    metrics: tuple[str, ...],
    layout: Mapping[str, LineFile],
    splits: Mapping[str, Source],
    prefix: str = "",
) -> Task:
    """A task named after its folder. GLUE names submissions like the folder, ELUE in lower case."""
    return Task(
        name=prefix + folder.lower(),
        labels=labels,
        metrics=metrics,
        splits=splits,
        problem_type=SINGLE_LABEL if labels else REGRESSION,
        layout=layout,
        aliases=(folder,),
        submission=folder.lower() if prefix else folder,
    )


def files(labelled: ColumnMap, test: ColumnMap, header: bool = True) -> dict[str, LineFile]:
    """The three files of most tasks; in CoLA the labelled ones have no header."""
    return {
        "train": LineFile(Path("train.tsv"), labelled, header),
        "validation": LineFile(Path("dev.tsv"), labelled, header),
        "test": LineFile(Path("test.tsv"), test),
    }


def on_hub(
    config: str,
    text: str,
    text_pair: str | None = None,
    numbered: bool = False,
    splits: Mapping[str, str] = SPLITS,
) -> dict[str, HubSplit]:
    columns = ColumnMap(text, text_pair, "label", "idx")
    return hub_splits("nyu-mll/glue", columns, splits, config, numbered)


def mnli(name: str, genres: str, submission: str) -> Task:
    labelled = ColumnMap(8, 9, label=-1)
    splits = {"train": "train", "validation": f"validation_{genres}", "test": f"test_{genres}"}
    return Task(
        name=name,
        labels=NLI,
        metrics=ACCURACY,
        layout={
            "train": LineFile(Path("train.tsv"), labelled),
            "validation": LineFile(Path(f"dev_{genres}.tsv"), labelled),
            "test": LineFile(Path(f"test_{genres}.tsv"), ColumnMap(8, 9, idx=0)),
        },
        splits=on_hub("mnli", "premise", "hypothesis", splits=splits),
        aliases=("MNLI", submission, f"mnli_{genres}"),
        submission=submission,
    )


PAIR_TEST = ColumnMap(1, 2, idx=0)
PAIR = files(ColumnMap(1, 2, label=-1), PAIR_TEST)
SENTENCE_TEST = ColumnMap(1, idx=0)
SENTENCE = files(ColumnMap(0, label=1), SENTENCE_TEST)
MRPC = files(ColumnMap(3, 4, label=0), ColumnMap(3, 4, idx=0))
COLA = files(ColumnMap(3, label=1), SENTENCE_TEST, header=False)
STSB = files(ColumnMap(7, 8, label=-1), ColumnMap(7, 8, idx=0))
QQP = files(ColumnMap(3, 4, label=5), PAIR_TEST)

GLUE = [
    benchmark_task("CoLA", BINARY, ("mcc",), COLA, on_hub("cola", "sentence", numbered=True)),
    benchmark_task("SST-2", BINARY, ACCURACY, SENTENCE, on_hub("sst2", "sentence", numbered=True)),
    benchmark_task("MRPC", BINARY, PARAPHRASE, MRPC, on_hub("mrpc", "sentence1", "sentence2", numbered=True)),
    benchmark_task("STS-B", None, SIMILARITY, STSB, on_hub("stsb", "sentence1", "sentence2")),
    benchmark_task("QQP", BINARY, PARAPHRASE, QQP, on_hub("qqp", "question1", "question2", numbered=True)),
    mnli("mnli", "matched", submission="MNLI-m"),
    mnli("mnli-mm", "mismatched", submission="MNLI-mm"),
    benchmark_task("QNLI", ENTAILMENT, ACCURACY, PAIR, on_hub("qnli", "question", "sentence")),
    benchmark_task("RTE", ENTAILMENT, ACCURACY, PAIR, on_hub("rte", "sentence1", "sentence2")),
    benchmark_task("WNLI", BINARY, ACCURACY, PAIR, on_hub("wnli", "sentence1", "sentence2", numbered=True)),
    Task(
        name="ax",
        labels=NLI,
        metrics=("mcc",),
        layout={"test": LineFile(Path("diagnostic.tsv"), PAIR_TEST)},
        splits=on_hub("ax", "premise", "hypothesis", splits={"test": "test"}),
        aliases=("AX", "diagnostic"),
        submission="AX",
    ),
]
