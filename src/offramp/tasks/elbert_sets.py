"""The text classification sets that ELBERT was evaluated on (Xie et al. 2021, arXiv:2107.00175).

The files are those of ELBERT's own preprocessing, where most sets use the test set for validation. IMDb and 20news
split their lines differently from the rest. R8, R52, Cade and WebKB can be read from files only.
"""

from collections.abc import Callable
from pathlib import Path

from offramp.tasks.base import Task
from offramp.tasks.files import ColumnMap, HubSplit, LineFile, hub_splits, split_tabs


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


def task(
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


def on_hub(path: str, text: str, label: str = "label", numbered: bool = True) -> dict[str, HubSplit]:
    splits = {"train": "train", "validation": "test"}
    return hub_splits(path, ColumnMap(text, label=label), splits, numbered=numbered)


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

SNLI = hub_splits(
    "stanfordnlp/snli",
    ColumnMap("premise", "hypothesis", "label"),
    {"train": "train", "validation": "validation"},
    numbered=True,
)

ELBERT_SETS = [
    task(
        "snli",
        ("1", "2", "0"),
        "SNLI",
        train="train.csv",
        validation="dev.csv",
        columns=ColumnMap(1, 2, label=0),
        hub=SNLI,
    ),
    task(
        "imdb",
        numbers(2),
        "IMDb",
        train="train.csv",
        validation="test.csv",
        columns=ColumnMap(0, label=1),
        split_line=split_quoted,
        hub=on_hub("stanfordnlp/imdb", "text"),
    ),
    task("ag", numbers(4), "ag_news", hub=on_hub("fancyzhx/ag_news", "text")),
    task("dbpedia", numbers(14), "dbpedia_14", hub=on_hub("fancyzhx/dbpedia_14", "content")),
    task(
        "yahoo",
        numbers(10),
        "yahoo_answers",
        hub=on_hub("community-datasets/yahoo_answers_topics", "question_title", "topic"),
    ),
    task("yelp_f", numbers(5), "yelp", "yelp_full", hub=on_hub("Yelp/yelp_review_full", "text")),
    task(
        "news20",
        tuple(NEWS20.split()),
        "20news",
        "20newsgroups",
        split_line=lambda line: line.split(",", 1),  # rec.autos,a text that may contain commas
        hub=on_hub("SetFit/20_newsgroups", "text", "label_text", numbered=False),
    ),
    task("r8", tuple(R8.split())),
    task("r52", tuple(R52.split())),
    task("cade", tuple(CADE.split())),
    task("webkb", ("student", "faculty", "course", "project")),
]
