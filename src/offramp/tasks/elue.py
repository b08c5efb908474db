"""The tasks of ELUE (Liu et al. 2022, arXiv:2110.07038).

Like `glue`, with tables of its own: STS-B has its texts in the first two columns, and every table a header.
ELUE is no data set of the hub, the sets that it was drawn from are: there a task has their splits. ELUE's
files number the labels of SNLI and SciTail without a key, taken here to be the hub's order and entailment
first: for predictions that go to ELUE, train on ELUE's files.
"""

from collections.abc import Mapping

from offramp.problems import REGRESSION
from offramp.tasks.base import Task
from offramp.tasks.files import Columns, Hub
from offramp.tasks.glue import BINARY, PARAPHRASE_METRICS, SIMILARITY_METRICS, hub, tables

SINGLE_TEXT = tables(Columns(0, label=1), Columns(1, idx=0))
PAIR = tables(Columns(0, 1, label=-1), Columns(1, 2, idx=0))


def nli(path: str, config: str | None, numbered: bool, names: Mapping[str, str]) -> dict[str, Hub]:
    columns = Columns("premise", "hypothesis", "label")
    return {
        split: Hub(path, config, split, columns, numbered, names) for split in ("train", "validation", "test")
    }


ELUE = [
    Task(
        name="elue/sst-2",
        labels=BINARY,
        metrics=("acc",),
        layout=SINGLE_TEXT,
        splits=hub("sst2", "sentence", numbered=True),
        aliases=("SST-2",),
        submission="sst-2",
    ),
    Task(
        name="elue/imdb",
        labels=BINARY,
        metrics=("acc",),
        layout=SINGLE_TEXT,
        splits={
            split: Hub("stanfordnlp/imdb", None, name, Columns("text", label="label"), numbered=True)
            for split, name in {"train": "train", "validation": "test"}.items()
        },
        aliases=("IMDb",),
        submission="imdb",
    ),
    Task(
        name="elue/mrpc",
        labels=BINARY,
        metrics=PARAPHRASE_METRICS,
        layout=tables(Columns(3, 4, label=0), Columns(3, 4, idx=0)),
        splits=hub("mrpc", "sentence1", "sentence2", numbered=True),
        aliases=("MRPC",),
        submission="mrpc",
    ),
    Task(
        name="elue/sts-b",
        labels=None,
        problem_type=REGRESSION,
        metrics=SIMILARITY_METRICS,
        layout=PAIR,
        splits=hub("stsb", "sentence1", "sentence2"),
        aliases=("STS-B",),
        submission="sts-b",
    ),
    Task(
        name="elue/snli",
        labels=("0", "1", "2"),
        metrics=("acc",),
        layout=PAIR,
        splits=nli("stanfordnlp/snli", None, numbered=True, names={}),
        aliases=("SNLI",),
        submission="snli",
    ),
    Task(
        name="elue/scitail",
        labels=BINARY,
        metrics=("acc",),
        layout=PAIR,
        splits=nli("allenai/scitail", "tsv_format", numbered=False, names={"entails": "0", "neutral": "1"}),
        aliases=("SciTail",),
        submission="scitail",
    ),
]
