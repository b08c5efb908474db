"""The tasks of GLUE, ELUE and ELBERT by name, in their own files and on the hub.

GLUE (Wang et al. 2018, arXiv:1804.07461): labels are in the order of the older scripts, not in the hub's. The
headline metric is F1 for MRPC and QQP, and Spearman's correlation for STS-B. MNLI is two tasks with the same
training data, so that scores and predictions for matched and mismatched genres stay apart.

ELUE (Liu et al. 2022, arXiv:2110.07038): STS-B, SNLI and SciTail have their texts in the first two columns. ELUE is
not on the hub, but the data sets that it was drawn from are, and a task read from the hub has their splits. ELUE's
files number the labels of SNLI and SciTail without a key; here they are taken to be in the hub's order, and
entailment first. For predictions that go to ELUE, train on ELUE's files.

ELBERT (Xie et al. 2021, arXiv:2107.00175): the files of the text classification sets are those of its own
preprocessing, where most sets use the test set for validation. IMDb and 20news split their lines differently from
the rest. R8, R52, Cade and WebKB can be read from files only.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from offramp.data.files import ColumnMap, HubSplit, LineFile, Source, hub_splits, split_tabs
from offramp.data.task import NLI, Task
from offramp.problems import REGRESSION, SINGLE_LABEL

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

ACCURACY = ("acc",)
PARAPHRASE = ("f1", "acc", "acc_and_f1")
SIMILARITY = ("spearmanr", "pearson", "corr")

SPLITS = {"train": "train", "validation": "validation", "test": "test"}
TRAIN_AND_TEST = {"train": "train", "validation": "test"}


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
        problem=SINGLE_LABEL if labels else REGRESSION,
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


ELUE_PAIR = files(ColumnMap(0, 1, label=-1), PAIR_TEST)
NLI_COLUMNS = ColumnMap("premise", "hypothesis", "label")

IMDB_HUB = hub_splits("stanfordnlp/imdb", ColumnMap("text", label="label"), TRAIN_AND_TEST, numbered=True)
SNLI_HUB = hub_splits("stanfordnlp/snli", NLI_COLUMNS, SPLITS, numbered=True)
SCITAIL_HUB = hub_splits(
    "allenai/scitail", NLI_COLUMNS, SPLITS, "tsv_format", label_names={"entails": "0", "neutral": "1"}
)

elue_task = partial(benchmark_task, prefix="elue/")

ELUE = [
    elue_task("SST-2", BINARY, ACCURACY, SENTENCE, on_hub("sst2", "sentence", numbered=True)),
    elue_task("IMDb", BINARY, ACCURACY, SENTENCE, IMDB_HUB),
    elue_task("MRPC", BINARY, PARAPHRASE, MRPC, on_hub("mrpc", "sentence1", "sentence2", numbered=True)),
    elue_task("STS-B", None, SIMILARITY, ELUE_PAIR, on_hub("stsb", "sentence1", "sentence2")),
    elue_task("SNLI", ("0", "1", "2"), ACCURACY, ELUE_PAIR, SNLI_HUB),
    elue_task("SciTail", BINARY, ACCURACY, ELUE_PAIR, SCITAIL_HUB),
]


def split_quoted(line: str) -> list[str]:
    """The cells of `"a text",1`, where the text may contain quotes and commas. Any other line is one cell.

    >>> split_quoted('"Dull, dull, ""dull"".",0')
    ['Dull, dull, "dull".', '0']
    """
    text, _, label = line.rpartition(",")
    if not label.strip('"').isalnum():
        return [line]
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('""', '"')
    return [text, label.strip('"')]


def elbert_task(
    name: str,
    labels: tuple[str, ...],
    *aliases: str,
    train: str = "train.tsv",
    validation: str = "test.tsv",
    columns: ColumnMap = ColumnMap(1, label=0),  # noqa: B008 - frozen
    split_line: Callable[[str], list[str]] = split_tabs,
    hub: dict[str, HubSplit] | None = None,
) -> Task:
    return Task(
        name=name,
        labels=labels,
        metrics=("acc", "macro_f1"),
        layout={
            "train": LineFile(Path(train), columns, split_line=split_line),
            "validation": LineFile(Path(validation), columns, split_line=split_line),
        },
        splits=hub or {},
        aliases=aliases or (name,),
    )


def elbert_on_hub(path: str, text: str, label: str = "label", numbered: bool = True) -> dict[str, HubSplit]:
    return hub_splits(path, ColumnMap(text, label=label), TRAIN_AND_TEST, numbered=numbered)


def numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


R8 = "earn acq crude trade money-fx interest ship grain"

R52 = """
earn acq crude trade money-fx interest money-supply ship sugar coffee gold gnp cpi cocoa grain jobs reserves
ipi rubber alum copper iron-steel nat-gas bop veg-oil retail tin housing cotton wpi pet-chem livestock orange
lei gas strategic-metal zinc lumber income heat carcass meal-feed instal-debt lead fuel cpu nickel dlr tea
potato jet platinum
"""

NEWS20 = """
rec.sport.hockey rec.motorcycles soc.religion.christian rec.sport.baseball sci.crypt rec.autos sci.med
sci.space comp.windows.x sci.electronics comp.sys.ibm.pc.hardware misc.forsale comp.graphics
comp.sys.mac.hardware comp.os.ms-windows.misc talk.politics.mideast talk.politics.guns alt.atheism
talk.politics.misc talk.religion.misc
"""

CADE = """
01_servicos 02_sociedade 03_lazer 04_informatica 05_saude 06_educacao 07_internet 08_cultura 09_esportes
10_noticias 11_ciencias 12_compras_on_line
"""

ELBERT_SETS = [
    elbert_task(
        "snli",
        ("1", "2", "0"),
        "SNLI",
        train="train.csv",
        validation="dev.csv",
        columns=ColumnMap(1, 2, label=0),
        hub={split: SNLI_HUB[split] for split in ("train", "validation")},
    ),
    elbert_task(
        "imdb",
        numbers(2),
        "IMDb",
        train="train.csv",
        validation="test.csv",
        columns=ColumnMap(0, label=1),
        split_line=split_quoted,
        hub=IMDB_HUB,
    ),
    elbert_task("ag", numbers(4), "ag_news", hub=elbert_on_hub("fancyzhx/ag_news", "text")),
    elbert_task("dbpedia", numbers(14), "dbpedia_14", hub=elbert_on_hub("fancyzhx/dbpedia_14", "content")),
    elbert_task(
        "yahoo",
        numbers(10),
        "yahoo_answers",
        hub=elbert_on_hub("community-datasets/yahoo_answers_topics", "question_title", "topic"),
    ),
    elbert_task(
        "yelp_f", numbers(5), "yelp", "yelp_full", hub=elbert_on_hub("Yelp/yelp_review_full", "text")
    ),
    elbert_task(
        "news20",
        tuple(NEWS20.split()),
        "20news",
        "20newsgroups",
        split_line=lambda line: line.split(",", 1),  # rec.autos,a text that may contain commas
        hub=elbert_on_hub("SetFit/20_newsgroups", "text", "label_text", numbered=False),
    ),
    elbert_task("r8", tuple(R8.split())),
    elbert_task("r52", tuple(R52.split())),
    elbert_task("cade", tuple(CADE.split())),
    elbert_task("webkb", ("student", "faculty", "course", "project")),
]
