"""The text classification sets that ELBERT was measured on (Xie et al. 2021, arXiv:2107.00175).

Like `glue`, in the tables of ELBERT's own preparation, where the test set mostly plays the part of a
validation set. Two of them divide their lines in a way of their own. R8, R52, Cade and WebKB have no
source on the hub here.
"""

from collections.abc import Callable
from pathlib import Path

from offramp.tasks.base import Task
from offramp.tasks.files import Columns, Hub, Table, tabs


def quoted_text_and_label(line: str) -> list[str]:
    """The cells of `"a text",1`, whatever quotes and commas the text holds; other lines are one cell.

    >>> quoted_text_and_label('"Dull, dull, ""dull"".",0')
    ['Dull, dull, "dull".', '0']
    """
    text, _, label = line.rpartition(",")
    if not label.strip('"').isalnum():
        return [line]
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('""', '"')
    return [text, label.strip('"')]


def label_and_rest(line: str) -> list[str]:
    """The cells of `rec.autos,a text`: all behind the first comma is text."""
    return line.split(",", 1)


def task(
    name: str,
    labels: tuple[str, ...],
    *aliases: str,
    train: str = "train.tsv",
    validation: str = "test.tsv",
    columns: Columns = Columns(1, label=0),  # noqa: B008 - frozen
    cells: Callable[[str], list[str]] = tabs,
    splits: dict[str, Hub] | None = None,
) -> Task:
    return Task(
        name=name,
        labels=labels,
        metrics=("acc", "macro_f1"),
        layout={
            "train": Table(Path(train), columns, cells=cells),
            "validation": Table(Path(validation), columns, cells=cells),
        },
        splits=splits or {},
        aliases=aliases or (name,),
    )


def hub(path: str, columns: Columns, validation: str = "test", numbered: bool = True) -> dict[str, Hub]:
    return {
        "train": Hub(path, None, "train", columns, numbered),
        "validation": Hub(path, None, validation, columns, numbered),
    }


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

TEXT = [
    task(
        "snli",
        ("1", "2", "0"),
        "SNLI",
        train="train.csv",
        validation="dev.csv",
        columns=Columns(1, 2, label=0),
        splits=hub("stanfordnlp/snli", Columns("premise", "hypothesis", "label"), "validation"),
    ),
    task(
        "imdb",
        numbers(2),
        "IMDb",
        train="train.csv",
        validation="test.csv",
        columns=Columns(0, label=1),
        cells=quoted_text_and_label,
        splits=hub("stanfordnlp/imdb", Columns("text", label="label")),
    ),
    task("ag", numbers(4), "ag_news", splits=hub("fancyzhx/ag_news", Columns("text", label="label"))),
    task(
        "dbpedia",
        numbers(14),
        "dbpedia_14",
        splits=hub("fancyzhx/dbpedia_14", Columns("content", label="label")),
    ),
    task(
        "yahoo",
        numbers(10),
        "yahoo_answers",
        splits=hub("community-datasets/yahoo_answers_topics", Columns("question_title", label="topic")),
    ),
    task(
        "yelp_f",
        numbers(5),
        "yelp",
        "yelp_full",
        splits=hub("Yelp/yelp_review_full", Columns("text", label="label")),
    ),
    task(
        "news20",
        tuple(NEWS20.split()),
        "20news",
        "20newsgroups",
        cells=label_and_rest,
        splits=hub("SetFit/20_newsgroups", Columns("text", label="label_text"), numbered=False),
    ),
    task("r8", tuple(R8.split())),
    task("r52", tuple(R52.split())),
    task("cade", tuple(CADE.split())),
    task("webkb", ("student", "faculty", "course", "project")),
]
