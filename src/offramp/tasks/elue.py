"""The tasks of ELUE (Liu et al. 2022, arXiv:2110.07038).

Like `glue`, but STS-B, SNLI and SciTail have their texts in the first two columns. ELUE is not on the hub, but the
data sets that it was drawn from are, and a task read from the hub has their splits. ELUE's files number the labels of
SNLI and SciTail without a key; here they are taken to be in the hub's order, and entailment first. For predictions
that go to ELUE, train on ELUE's files.
"""

from functools import partial

from offramp.tasks import glue
from offramp.tasks.files import ColumnMap, hub_splits

PAIR = glue.files(ColumnMap(0, 1, label=-1), glue.PAIR_TEST)
NLI_COLUMNS = ColumnMap("premise", "hypothesis", "label")

IMDB_SPLITS = {"train": "train", "validation": "test"}

IMDB = hub_splits("stanfordnlp/imdb", ColumnMap("text", label="label"), IMDB_SPLITS, numbered=True)
SNLI = hub_splits("stanfordnlp/snli", NLI_COLUMNS, glue.SPLITS, numbered=True)
SCITAIL = hub_splits(
    "allenai/scitail", NLI_COLUMNS, glue.SPLITS, "tsv_format", label_names={"entails": "0", "neutral": "1"}
)

task = partial(glue.benchmark_task, prefix="elue/")

ELUE = [
    task("SST-2", glue.BINARY, glue.ACCURACY, glue.SENTENCE, glue.on_hub("sst2", "sentence", numbered=True)),
    task("IMDb", glue.BINARY, glue.ACCURACY, glue.SENTENCE, IMDB),
    task(
        "MRPC",
        glue.BINARY,
        glue.PARAPHRASE,
        glue.MRPC,
        glue.on_hub("mrpc", "sentence1", "sentence2", numbered=True),
    ),
    task("STS-B", None, glue.SIMILARITY, PAIR, glue.on_hub("stsb", "sentence1", "sentence2")),
    task("SNLI", ("0", "1", "2"), glue.ACCURACY, PAIR, SNLI),
    task("SciTail", glue.BINARY, glue.ACCURACY, PAIR, SCITAIL),
]
