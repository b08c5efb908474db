"""A task: which texts, which labels, how answers are scored, and where each split comes from.

Whatever the source, `load` gives a `datasets.DatasetDict` with the columns `text`, `text_pair` (pairs only),
`label` (an index into the labels, a number, or a list of 0 and 1) and `idx` (the number under which a
benchmark wants the answer, else that of the row). A split without labels has no column `label`. All rows are
checked there, so a task that loads can be trained on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from offramp.errors import BadData, UnknownName
from offramp.problems import MULTI_LABEL, PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from offramp.tasks.checks import checked, infer_labels, infer_problem_type
from offramp.tasks.files import Columns, File, Hub, Source, Table, column_names, guess, hub_data, label_names
from offramp.tasks.metrics import check_metrics

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

DEFAULT_METRICS = {
    SINGLE_LABEL: ("acc", "macro_f1"),
    MULTI_LABEL: ("micro_f1", "macro_f1", "acc"),
    REGRESSION: ("pearson", "spearmanr", "corr"),
}

NLI = ("contradiction", "entailment", "neutral")
NLI_OF_ROBERTA = ("contradiction", "neutral", "entailment")
"""As DeeBERT, PABEE, ELBERT and RomeBERT count MNLI's labels with these encoders, which their files do not say."""
ROBERTAS = ("roberta", "xlm-roberta")


@dataclass(frozen=True)
class Task:
    """What a model learns and is measured on.

    *Example*

    >>> task = Task.named("SST-2")
    >>> task.labels, task.headline, list(task.splits)
    (('0', '1'), 'acc', ['train', 'validation', 'test'])
    """

    name: str
    labels: tuple[str, ...] | None
    """The names of the labels in the order of the model's logits; None where the answer is a number."""
    metrics: tuple[str, ...]
    """What answers are scored by; the first is the headline."""
    splits: Mapping[str, Source]
    """Where `load` finds each split."""
    problem_type: str = SINGLE_LABEL
    """In the words of transformers: single_label_classification, multi_label_classification or regression."""
    separator: str | None = None
    """What stands between the labels of one example, where a cell of text holds many."""
    bad_rows: str = "error"
    """Labelled rows of the wrong width, or without text or label, are an "error", or what to "drop" aloud."""
    layout: Mapping[str, Table] = field(default_factory=dict)
    """The files of the task in a folder, for `at`."""
    aliases: tuple[str, ...] = ()
    """Other names of the task and of its folder, the usual one first."""
    submission: str | None = None
    """What the benchmark calls the file of answers, without its ending."""

    def __post_init__(self) -> None:
        labels = self.labels or ()
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise BadData(f"{self.name}: two labels are named {twice[0]!r}, expected each name once")
        if self.separator == "":
            raise BadData(f"{self.name}: the separator is empty, expected what stands between labels")
        check_metrics(self.metrics, self.problem_type, len(labels))

    @classmethod
    def named(cls, name: str, folder: str | Path | None = None, bad_rows: str | None = None) -> "Task":
        """A known task in any usual spelling, from a folder of its files or else from the hub.

        The folder is the task's own or the one around it: `data/glue/MRPC` and `data/glue` both do. Bad rows are
        by default an error in files, and dropped aloud from the hub, where nobody can mend them.
        """
        from offramp.tasks import TASKS

        spelt = {_plain(task.name.removeprefix(_prefix(task))): task for task in TASKS.values()}
        spelt |= {_plain(_prefix(task) + other): task for task in TASKS.values() for other in task.aliases}
        spelt |= {_plain(task.name): task for task in TASKS.values()}
        if _plain(name) not in spelt:
            raise UnknownName(f"no task named {name!r}; have {', '.join(TASKS)}. Own data: Task.from_files")
        bad_rows = bad_rows or ("drop" if folder is None else "error")
        task = replace(spelt[_plain(name)], bad_rows=bad_rows)
        return task if folder is None else task.at(folder)

    @classmethod
    def from_files(
        cls,
        train: str | Path | None = None,
        validation: str | Path | None = None,
        test: str | Path | None = None,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        metrics: Sequence[str] | None = None,
        separator: str | None = None,
        bad_rows: str = "error",
        unlabelled: Sequence[str] = ("test",),
        name: str = "files",
    ) -> "Task":
        """A task from CSV, TSV, JSONL or Parquet files; what is not said is found in the first of them.

        Columns are guessed by their names, labels are those that occur. Where an example has many labels,
        they stand in a list of names, or in a text that `separator` divides. Splits named in `unlabelled` may
        lack the column of labels; with no other split, say `labels` too.
        """
        paths = {"train": train, "validation": validation, "test": test}
        given = {split: Path(path) for split, path in paths.items() if path is not None}
        if not given:
            raise BadData("no files: say train=..., validation=... or test=...")
        labelled = [split for split in given if split not in unlabelled]
        first = given[(labelled or list(given))[0]]
        columns = guess(str(first), column_names(first), text, text_pair, label, needs_label=bool(labelled))
        sources = {
            split: File(path, _present(columns, split in unlabelled, column_names(path)))
            for split, path in given.items()
        }
        return cls._inferred(name, sources, labels, problem_type, metrics, separator, bad_rows)

    @classmethod
    def from_hub(
        cls,
        path: str,
        config: str | None = None,
        *,
        train: str = "train",
        validation: str = "validation",
        test: str = "test",
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        metrics: Sequence[str] | None = None,
        separator: str | None = None,
        bad_rows: str = "error",
    ) -> "Task":
        """A task from any data set of the hub, as `from_files` from files; splits by their names there."""
        data = hub_data(path, config)
        wanted = {"train": train, "validation": validation, "test": test}
        found = {split: name for split, name in wanted.items() if name in data}
        if not found:
            raise BadData(f"{path} has the splits {', '.join(data)}: say train=... or validation=...")
        features = data[next(iter(found.values()))].features
        columns = guess(path, list(features), text, text_pair, label)
        sources = {
            split: Hub(path, config, name, _present(columns, split == "test", data[name].column_names))
            for split, name in found.items()
        }
        labels = labels or label_names(features.get(columns.label))
        return cls._inferred(path, sources, labels, problem_type, metrics, separator, bad_rows)

    @classmethod
    def _inferred(
        cls,
        name: str,
        splits: Mapping[str, Source],
        labels: Sequence[str] | None,
        problem_type: str | None,
        metrics: Sequence[str] | None,
        separator: str | None,
        bad_rows: str,
    ) -> "Task":
        labelled = [source for source in splits.values() if source.columns.label is not None]
        if not labelled and not labels and problem_type != REGRESSION:
            raise BadData(f"{name}: no split has labels; say labels=..., their names in the model's order")
        rows = (labelled or list(splits.values()))[0].read()
        problem_type = problem_type or infer_problem_type(rows, labels, separator)
        if problem_type not in PROBLEM_TYPES:
            raise BadData(f"problem_type={problem_type!r}, expected one of {', '.join(PROBLEM_TYPES)}")
        names = labels or (
            infer_labels(rows, problem_type, separator) if problem_type != REGRESSION else None
        )
        known = None if names is None else tuple(str(label).strip() for label in names)
        metrics = tuple(metrics or DEFAULT_METRICS[problem_type])
        return cls(name, known, metrics, splits, problem_type, separator, bad_rows)

    @property
    def headline(self) -> str:
        """The one metric that stands for the task."""
        return self.metrics[0]

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of text that `load` gives: one, or two for pairs."""
        sources = [*self.splits.values(), *self.layout.values()]
        return ("text",) if sources[0].columns.text_pair is None else ("text", "text_pair")

    def at(self, folder: str | Path) -> "Task":
        """The same task, read from a folder of its files, where a test set may be absent."""
        home = self._home(Path(folder))
        tables = {split: replace(table, path=home / table.path) for split, table in self.layout.items()}
        there = {
            split: table
            for split, table in tables.items()
            if table.columns.label is not None or table.path.is_file()
        }
        return replace(self, splits=there)

    def _home(self, folder: Path) -> Path:
        """The folder itself where it holds files of the task, else the one inside it with the task's name."""
        files = [table.path for table in self.layout.values()]
        if any((folder / file).is_file() for file in files):
            return folder
        own = {_plain(name) for name in (*self.aliases, self.name.removeprefix(_prefix(self)))}
        for inside in sorted(folder.iterdir()) if folder.is_dir() else []:
            if _plain(inside.name) in own and any((inside / file).is_file() for file in files):
                return inside
        raise BadData(
            f"{folder}: no files of {self.name}, expected {', '.join(map(str, files))} there "
            f"or in a folder {self.aliases[0]} inside it"
        )

    def with_label_order(self, names: Sequence[str], encoder: str) -> "Task":
        """The task with its labels in the order of a model that answers with these names.

        A model without names (LABEL_0, ...) counts as the task does, and labels that are numbers in order are
        places, not names. A RoBERTa without names for MNLI's labels is refused: it may count as older scripts did.
        """
        if self.labels is None:
            return self
        if set(names) == set(self.labels):
            return replace(self, labels=tuple(names))
        places = [str(index) for index in range(len(names))]
        exchanged = encoder in ROBERTAS and set(self.labels) == set(NLI)
        if has_default_names(names) and exchanged:
            raise BadData(
                f"a {encoder} without names for its labels may count {', '.join(NLI)}, or "
                f"{', '.join(NLI_OF_ROBERTA)} as the older scripts did; make or import it with labels=[...]"
            )
        if list(self.labels) == places or (has_default_names(names) and len(self.labels) == len(names)):
            return self
        raise BadData(
            f"the labels do not match: the model answers {', '.join(names)} and {self.name} has "
            f"{', '.join(self.labels)}; give the data the model's names, or make the model with the task's"
        )

    def load(self, *splits: str) -> "DatasetDict":
        """The named splits, or all of them, with every row checked."""
        import datasets

        if self.bad_rows not in ("error", "drop"):
            raise BadData(f'bad_rows={self.bad_rows!r}, expected "error" or "drop"')
        if not self.splits:
            raise BadData(f"{self.name} is not on the hub: say folder=..., where its files are")
        return datasets.DatasetDict({split: self._dataset(split) for split in splits or self.splits})

    def _dataset(self, split: str) -> "Dataset":
        import datasets

        if split not in self.splits:
            raise BadData(f"{self.name} has no split {split!r} here; have {', '.join(self.splits)}")
        rows = self.splits[split].read()
        columns = checked(rows, self.texts, self.labels, self.problem_type, self.separator, self.bad_rows)
        kinds = {
            SINGLE_LABEL: datasets.ClassLabel(names=list(self.labels or ())),
            MULTI_LABEL: datasets.List(datasets.Value("float32")),  # what the loss over many labels takes
            REGRESSION: datasets.Value("float32"),
        }
        features = {text: datasets.Value("string") for text in self.texts}
        features |= {"label": kinds[self.problem_type]} if "label" in columns else {}
        features["idx"] = datasets.Value("int64")
        return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def has_default_names(names: Sequence[str]) -> bool:
    """Whether a model has only transformers' own names for its labels."""
    return list(names) == [f"LABEL_{index}" for index in range(len(names))]


def _plain(name: str) -> str:
    """A name without what people spell in different ways: case, hyphens, and GLUE in front."""
    return re.sub(r"[^a-z0-9/]", "", name.lower()).removeprefix("glue/")


def _prefix(task: Task) -> str:
    """The benchmark in front of the name, as in elue/sst-2."""
    return "".join(task.name.rpartition("/")[:2])


def _present(columns: Columns, may_lack_label: bool, names: Sequence[str]) -> Columns:
    """The columns, without the label where a split has none and need not have one."""
    return replace(columns, label=None) if may_lack_label and columns.label not in names else columns
