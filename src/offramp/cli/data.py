"""The data of a command: a known task, local files, or a dataset on the hub; and a trace of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offramp.cli.command import log
from offramp.cli.options import RuntimeOptions, TextOption, TextPairOption, split_names
from offramp.cli.progress import in_terminal
from offramp.errors import BadData, BadOption

if TYPE_CHECKING:
    from offramp.data import Task
    from offramp.model_info import ModelInfo
    from offramp.trace import Trace

HUB = "Dataset on the hub: NAME or NAME:CONFIG."
TASK = "Known task, such as mrpc; see `offramp list tasks`."
SWAPPED = 0.75
"""The share of rows that renamed labels must explain before they count as swapped."""


@dataclass(frozen=True)
class ColumnOptions:
    """How to read the columns of local files or of a hub dataset."""

    text: TextOption = None
    text_pair: TextPairOption = None
    label: Annotated[str | None, Option(help="Column of the label; guessed from its name by default.")] = None
    labels: Annotated[
        str | None, Option(help="Comma-separated label names; by default those in the data.")
    ] = None
    problem: Annotated[
        str | None,
        Option(
            help="single_label_classification, multi_label_classification or regression; inferred by default."
        ),
    ] = None
    separator: Annotated[str | None, Option(help="Separator between the labels of one example.")] = None
    metrics: Annotated[str | None, Option(help="Comma-separated metrics; the first is the headline.")] = None
    bad_rows: Annotated[
        str | None,
        Option(help="Incomplete rows: error or drop. By default error, but drop for known tasks on the hub."),
    ] = None

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """An option that would have no effect is an error."""
        for name in names:
            if getattr(self, name) is not None:
                raise BadOption(f"--{name.replace('_', '-')} has no effect: {reason}; leave it out.")

    def options(self) -> dict[str, Any]:
        """Arguments of `Task.from_files` and `Task.from_hub`."""
        return {
            "text": self.text,
            "text_pair": self.text_pair,
            "label": self.label,
            "labels": split_names(self.labels),
            "problem_type": self.problem,
            "separator": self.separator,
            "metrics": split_names(self.metrics),
            "bad_rows": self.bad_rows or "error",
        }


@dataclass(frozen=True)
class DataOptions:
    """One split of a task, or one file."""

    task: Annotated[str | None, Option(help=TASK)] = None
    data: Annotated[
        Path | None,
        Option(
            help="With --task, the folder of its files (by default they are downloaded); else a txt (one text per "
            "line), csv, tsv, jsonl, parquet or conll file."
        ),
    ] = None
    hub: Annotated[str | None, Option(help=HUB)] = None
    split: Annotated[str, Option(help="train, validation or test, with --task or --hub.")] = "validation"

    @property
    def is_set(self) -> bool:
        return bool(self.task or self.data or self.hub)

    @property
    def file(self) -> Path | None:
        """The file, if the data are not a task or a dataset on the hub."""
        return None if self.task or self.hub else self.data

    def load(self, model: "ModelInfo", columns: ColumnOptions, by: str | None = None) -> "Split":
        """The texts, with their labels in the order of the model's logits; `by` is the column of their categories."""
        if by is not None and model.problem.of_tokens:
            raise BadOption(
                f"--by {by}: a guarantee for a tagger holds for all texts together; leave it out."
            )
        if self.file is None:
            if by is not None:
                raise BadOption("--by is for a file; name it with --data.")
            task, split = find_task(self.task, self.data, self.hub, columns), self.split
            name = f"{task.name} {split}"
        else:
            task, split, name = self.file_task(self.file, model, columns, by), "validation", self.file.name
        task = match_labels(task, model)
        return Split(task, name, task.columns(split), by or "")

    def file_task(self, file: Path, model: "ModelInfo", columns: ColumnOptions, by: str | None) -> "Task":
        from offramp.data import Task
        from offramp.data.checks import has_default_names

        columns.refuse(["problem"], f"the model is for {model.problem}")
        options = columns.options() | {"problem_type": model.problem}
        if not model.problem.has_classes:
            columns.refuse(["labels"], "the model predicts numbers")
        elif not has_default_names(model.labels):
            columns.refuse(["labels"], f"the labels of the model are {', '.join(model.labels)}")
            options["labels"] = list(model.labels)
        options |= {"category": by, "unlabelled": ["validation"]}
        return Task.from_files(validation=file, name=file.stem, **options)


@dataclass(frozen=True)
class Split:
    """Texts that have been read and checked, with their labels if there are any."""

    task: "Task"
    name: str
    """What reports call the texts."""
    columns: Mapping[str, list[Any]]
    category_column: str = ""
    """What the column `category` is called in the file, if there is one."""

    @property
    def texts(self) -> list[Any]:
        """The texts, or their pairs."""
        if "text_pair" not in self.columns:
            return self.columns["text"]
        return list(zip(self.columns["text"], self.columns["text_pair"], strict=True))

    def select(self, rows: Sequence[int]) -> "Split":
        return replace(
            self, columns={name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        )


def find_task(name: str | None, folder: Path | None, hub: str | None, columns: ColumnOptions) -> "Task":
    from offramp.data import Task

    if hub is not None and (name is not None or folder is not None):
        raise BadOption("use either --hub or --task with --data, not both.")
    if hub is not None:
        path, _, config = hub.partition(":")
        return Task.from_hub(path, config or None, **columns.options())
    if name is None:
        raise BadOption("no data given; use --task, --hub or a file.")
    without_effect = [field.name for field in fields(columns) if field.name != "bad_rows"]
    columns.refuse(without_effect, f"the columns and labels of {name} are known")
    return Task.named(name, folder, bad_rows=columns.bad_rows)


def match_labels(task: "Task", model: "ModelInfo") -> "Task":
    """The task with its labels in the model's order; labels that differ are an error."""
    if task.problem != model.problem:
        raise BadData(f"{task.name} is {task.problem}, but the model is for {model.problem}.")
    return task.with_label_order(model.labels, model.backbone)


def collect_trace(
    folder: Path, split: Split, runtime: RuntimeOptions, batch_tokens: int | None = None
) -> "Trace":
    """A trace, collected in PyTorch, or in ONNX Runtime for an exported model.

    If the folder contains the model whose predictions are to be kept, the trace has its logits too.
    """
    from offramp.folder import REFERENCE
    from offramp.inference.collect import collect
    from offramp.reports.results import RetrofitResults

    runner = runtime.load(folder, "never", batch_tokens=batch_tokens)
    trace = collect(
        runner, split.columns, metrics=split.task.metrics, data=split.name, progress=in_terminal()
    )
    if (folder / REFERENCE).is_dir():
        original = RetrofitResults.load(folder).original
        log(f"running {original}, whose predictions are to be kept")
        same_length = replace(runtime, max_length=runner.tokenizer.max_length)
        reference = same_length.load(folder / REFERENCE, "never", batch_tokens=batch_tokens)
        logits = collect(reference, split.columns, progress=in_terminal()).logits[:, -1]
        trace = replace(trace, reference=logits, reference_name=original)
    warn_about_swapped_labels(trace)
    if "category" not in split.columns:
        return trace
    return trace.categorized(split.category_column, split.columns["category"])


def warn_about_swapped_labels(trace: "Trace") -> None:
    """Labels in the wrong order: the model is mostly wrong, and right if its labels are renamed."""
    import numpy as np

    from offramp.problems import SINGLE_LABEL

    if trace.labels is None or trace.problem != SINGLE_LABEL or not trace.label_names:
        return
    classes = len(trace.label_names)
    counts = np.zeros((classes, classes))
    np.add.at(counts, (trace.logits[:, -1].argmax(-1), trace.labels), 1)
    usual = counts.argmax(-1)  # the most frequent label where the model predicts a class
    right, renamed = np.trace(counts), counts[np.arange(classes), usual].sum()
    if len({*usual}) == classes and right < len(trace) / classes and renamed > SWAPPED * len(trace):
        names = trace.label_names
        pairs = [
            f"{names[label]} where the model predicts {names[index]}" for index, label in enumerate(usual)
        ]
        log(
            f"warning: the labels look swapped: most rows are labelled {', '.join(pairs)}. Check the order of the "
            "model's label names."
        )
