"""A task: its texts and labels, its metrics, and where each split comes from.

Whatever the source, `load` returns a `datasets.DatasetDict` with the columns `text`, `text_pair` (pairs only),
`label` (an index into the labels, a number, a list of 0 and 1, or the tags of `words`) and `idx` (the index that a
benchmark's submission uses, or else the row number). A split without labels has no column `label`. `load` checks
every row, so a task that loads can be trained on.

Messages name options as Python arguments, `text=...` or `bad_rows='drop'`; the command line turns these into flags.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from offramp.data.checks import check_rows, has_default_names, infer_labels, infer_problem
from offramp.data.files import (
    DatasetTable,
    LineFile,
    LoadedSplit,
    Source,
    UserFile,
    check_not_empty,
    guess_columns,
    load_from_hub,
    read_file,
)
from offramp.data.metrics import check_metrics
from offramp.errors import BadData, UnknownName
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, TOKENS, Problem, problem_named
from offramp.wording import did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

NLI = ("contradiction", "entailment", "neutral")
NLI_OF_ROBERTA = ("contradiction", "neutral", "entailment")
"""The order of MNLI's labels that DeeBERT, PABEE, ELBERT and RomeBERT use for RoBERTa, without saving it."""
ROBERTAS = ("roberta", "xlm-roberta")


class TaskOptions(TypedDict, total=False):
    """How to read files or a data set; whatever is not given is inferred from the first of them."""

    text: str | None
    text_pair: str | None
    label: str | None
    """Columns, which are guessed by their names."""
    category: str | None
    """A column within whose values a guarantee is to hold."""
    labels: Sequence[str] | None
    """Label names; by default those that occur."""
    problem_type: str | None
    metrics: Sequence[str] | None
    separator: str | None
    """What separates the labels of a multi-label example in a text cell; without it they are a list of names."""
    bad_rows: str
    unlabelled: Sequence[str]
    """Splits that may lack the label column, by default the test split; if there are no others, give `labels`."""


@dataclass(frozen=True)
class Task:
    """What a model is trained and evaluated on.

    *Example*

    >>> task = Task.named("SST-2")
    >>> task.labels, task.headline, list(task.splits)
    (('0', '1'), 'acc', ['train', 'validation', 'test'])
    """

    name: str
    labels: tuple[str, ...] | None
    """Label names in the order of the model's logits; None for regression."""
    metrics: tuple[str, ...]
    """Names of metrics; the first is the headline."""
    splits: Mapping[str, Source]
    """Where `load` reads each split."""
    problem: Problem = SINGLE_LABEL
    separator: str | None = None
    """What separates the labels of a multi-label example in a text cell."""
    bad_rows: str = "error"
    """For labelled rows of the wrong width, or without text or label: "error", or "drop" them with a warning."""
    layout: Mapping[str, LineFile] = field(default_factory=dict)
    """The task's files, relative to its folder, for `at`."""
    aliases: tuple[str, ...] = ()
    """Other names of the task and of its folder, the usual one first."""
    submission: str | None = None
    """The benchmark's name for the file of predictions, without its suffix."""

    def __post_init__(self) -> None:
        labels = self.labels or ()
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise BadData(f"{self.name}: two labels are named {twice[0]!r}; label names must differ")
        if self.separator == "":
            raise BadData(f"{self.name}: separator='' is empty")
        if self.bad_rows not in ("error", "drop"):
            raise BadData(f"bad_rows={self.bad_rows!r}, expected error or drop")
        check_metrics(self.metrics, self.problem, len(labels))

    @classmethod
    def named(cls, name: str, folder: str | Path | None = None, bad_rows: str | None = None) -> "Task":
        """A built-in task in any usual spelling, read from a folder of its files or else from the hub.

        The folder is the task's own or its parent: `data/glue/MRPC` or `data/glue`. By default, bad rows are an error
        in files and dropped with a warning from the hub, whose data the user cannot fix.
        """
        from offramp.data import TASKS

        by_name = {_normalize(task.name.removeprefix(_prefix(task))): task for task in TASKS.values()}
        by_name |= {
            _normalize(_prefix(task) + alias): task for task in TASKS.values() for alias in task.aliases
        }
        by_name |= {_normalize(task.name): task for task in TASKS.values()}
        if _normalize(name) not in by_name:
            raise UnknownName(f"no task named {did_you_mean(name, TASKS)}")
        bad_rows = bad_rows or ("drop" if folder is None else "error")
        task = replace(by_name[_normalize(name)], bad_rows=bad_rows)
        return task if folder is None else task.at(folder)

    @classmethod
    def from_files(
        cls,
        train: str | Path | None = None,
        validation: str | Path | None = None,
        test: str | Path | None = None,
        *,
        name: str = "files",
        **options: Unpack[TaskOptions],
    ) -> "Task":
        """A task from CSV, TSV, JSONL, Parquet, CoNLL or txt files (a text per line); `options` are those of
        `TaskOptions`.

        To train a tagger, texts are lists of words, and labels are lists of their tags. Each file is read once, here,
        and kept in memory.
        """
        paths = {"train": train, "validation": validation, "test": test}
        tables = {split: read_file(Path(path)) for split, path in paths.items() if path is not None}
        return cls._from_tables(tables, name=name, **options)

    @classmethod
    def from_hub(cls, path: str, config: str | None = None, **options: Any) -> "Task":
        """Like `from_dataset`, for any data set on the hub."""
        return cls.from_dataset(load_from_hub(path, config), **{"name": path, **options})

    @classmethod
    def from_dataset(
        cls,
        data: "Dataset | DatasetDict",
        *,
        train: str = "train",
        validation: str = "validation",
        test: str = "test",
        name: str = "dataset",
        **options: Unpack[TaskOptions],
    ) -> "Task":
        """Like `from_files`, for a loaded data set, whose splits have the given names; a `Dataset` is a train split.

        Labels are the names of a `ClassLabel` column, or else those that occur.
        """
        import datasets

        if isinstance(data, datasets.Dataset):
            data = datasets.DatasetDict({train: data})
        if not isinstance(data, datasets.DatasetDict):
            raise BadData(
                f"{type(data).__name__} is not a datasets.Dataset or DatasetDict; load it without streaming"
            )
        names = {"train": train, "validation": validation, "test": test}
        tables = {
            split: DatasetTable(f"{name} {names[split]}", data[names[split]])
            for split in names
            if names[split] in data
        }
        if not tables:
            raise BadData(f"{name} has no split {', '.join(names.values())}; it has {', '.join(data)}")
        return cls._from_tables(tables, name=name, **options)

    @classmethod
    def _from_tables(
        cls,
        tables: Mapping[str, UserFile | DatasetTable],
        *,
        name: str,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        category: str | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        metrics: Sequence[str] | None = None,
        separator: str | None = None,
        bad_rows: str = "error",
        unlabelled: Sequence[str] = ("test",),
    ) -> "Task":
        if not tables:
            raise BadData("no files; pass train=..., validation=... or test=...")
        splits = _load_splits(tables, text, text_pair, label, category, unlabelled)
        labelled = [source for source in splits.values() if source.columns.label is not None]
        table = (labelled or [*splits.values()])[0].read()
        labels = labels or table.label_names
        problem = problem_named(problem_type) if problem_type else None
        if not labelled and not labels and problem != REGRESSION:
            raise BadData(
                f"{name}: no split has labels; pass labels=[...] in the order of the model's outputs"
            )
        problem = problem or infer_problem(table, labels, separator)
        if not labels and problem.has_classes:
            labels = infer_labels(table, problem, separator)
        names = tuple(str(label).strip() for label in labels) if labels else None
        return cls(
            name, names, tuple(metrics or problem.default_metrics), splits, problem, separator, bad_rows
        )

    @property
    def headline(self) -> str:
        """The main metric, by which checkpoints and policies are compared."""
        return self.metrics[0]

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The text columns that `load` returns: one, or two for pairs."""
        sources = [*self.splits.values(), *self.layout.values()]
        return ("text",) if sources[0].columns.text_pair is None else ("text", "text_pair")

    def at(self, folder: str | Path) -> "Task":
        """The same task, read from a folder of its files, which may lack a test set."""
        home = self._find_folder(Path(folder))
        files = {split: replace(file, path=home / file.path) for split, file in self.layout.items()}
        present = {
            split: file
            for split, file in files.items()
            if file.columns.label is not None or file.path.is_file()
        }
        return replace(self, splits=present)

    def _find_folder(self, folder: Path) -> Path:
        """The folder itself if it has files of the task, or else its subfolder with the task's name."""
        names = [file.path for file in self.layout.values()]
        if any((folder / name).is_file() for name in names):
            return folder
        folder_names = {_normalize(name) for name in (*self.aliases, self.name.removeprefix(_prefix(self)))}
        for inside in sorted(folder.iterdir()) if folder.is_dir() else []:
            if _normalize(inside.name) in folder_names and any((inside / name).is_file() for name in names):
                return inside
        raise BadData(
            f"{folder}: no files of {self.name}, expected {', '.join(map(str, names))} there "
            f"or in its subfolder {self.aliases[0]}"
        )

    def with_label_order(self, names: Sequence[str], encoder: str) -> "Task":
        """The task with its labels in the order of a model whose outputs have these names.

        A model without names (LABEL_0, ...) is taken to use the task's order, and a task whose labels are 0, 1, ...
        takes any names. A RoBERTa without names is refused for MNLI, because the older scripts used another order.
        """
        if self.labels is None:
            return self
        if set(names) == set(self.labels):
            return replace(self, labels=tuple(names))
        numbers = [str(index) for index in range(len(names))]
        ambiguous = encoder in ROBERTAS and set(self.labels) == set(NLI)
        if has_default_names(names) and ambiguous:
            raise BadData(
                f"this {encoder} does not name its labels: their order may be {', '.join(NLI)}, or "
                f"{', '.join(NLI_OF_ROBERTA)} as in the older scripts. Create or import it with labels=..."
            )
        if list(self.labels) == numbers or (has_default_names(names) and len(self.labels) == len(names)):
            return self
        raise BadData(
            f"the labels do not match: the model has {', '.join(names)}; {self.name} has "
            f"{', '.join(self.labels)}. Rename the labels in the data, or create the model with the task's labels"
        )

    def load(self, *splits: str) -> "DatasetDict":
        """The given splits, or all of them, with every row checked."""
        import datasets

        self._check_source()
        return datasets.DatasetDict({split: self._dataset(split) for split in splits or self.splits})

    def columns(self, split: str) -> dict[str, list[Any]]:
        """The columns of one split, with every row checked; for local files, without the package datasets."""
        self._check_source()
        if split not in self.splits:
            raise BadData(f"{self.name} has no split {split!r} here; it has {', '.join(self.splits)}")
        table = self.splits[split].read()
        return check_rows(table, self.text_columns, self.labels, self.problem, self.separator, self.bad_rows)

    def _check_source(self) -> None:
        if not self.splits:
            raise BadData(f"{self.name} is not on the hub; pass folder=..., the folder of its files")

    def _dataset(self, split: str) -> "Dataset":
        import datasets

        columns = self.columns(split)
        classes = datasets.ClassLabel(names=list(self.labels or ()))
        label_types: dict[str, object] = {
            SINGLE_LABEL: classes,
            TOKENS: datasets.List(classes),
            MULTI_LABEL: datasets.List(datasets.Value("float32")),  # as binary cross-entropy expects
            REGRESSION: datasets.Value("float32"),
        }
        features = {text: datasets.Value("string") for text in self.text_columns}
        features |= {"words": datasets.List(datasets.Value("string"))} if "words" in columns else {}
        features |= {"label": label_types[self.problem]} if "label" in columns else {}
        features["idx"] = datasets.Value("int64")
        kept = {name: columns[name] for name in features}
        return datasets.Dataset.from_dict(kept, features=datasets.Features(features))


def _normalize(name: str) -> str:
    """A task's name without case, punctuation and the prefix glue/."""
    return re.sub(r"[^a-z0-9/]", "", name.lower()).removeprefix("glue/")


def _prefix(task: Task) -> str:
    """The benchmark in a task's name, as in elue/sst-2."""
    return "".join(task.name.rpartition("/")[:2])


def _load_splits(
    tables: Mapping[str, UserFile | DatasetTable],
    text: str | None,
    text_pair: str | None,
    label: str | None,
    category: str | None,
    unlabelled: Sequence[str],
) -> dict[str, LoadedSplit]:
    """The columns of each split; those that are not named are guessed from the first split that must have labels."""
    labelled = [split for split in tables if split not in unlabelled]
    first = tables[(labelled or list(tables))[0]]
    names = [name for name in first.column_names if name != category]
    columns = guess_columns(first.source, names, text, text_pair, label, needs_label=bool(labelled))
    splits = {}
    for split, table in tables.items():
        check_not_empty(table)
        absent = split in unlabelled and columns.label not in table.column_names
        present = replace(columns, label=None if absent else columns.label, category=category)
        splits[split] = LoadedSplit(present, table.select(present))
    return splits
