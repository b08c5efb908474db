"""The data of a command: a known task, local files, or a dataset on the hub; and a trace of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offramp.cli.command import log
from offramp.cli.options import RuntimeOptions, TextOption, TextPairOption
from offramp.cli.progress import in_terminal
from offramp.errors import BadData, BadOption

if TYPE_CHECKING:
    from offramp.data import Task
    from offramp.model_info import ModelInfo
    from offramp.trace import Trace

HUB = "Dataset on the hub: NAME or NAME:CONFIG."
TASK = "Known task, such as mrpc; see `offramp list tasks`."


Columns = Mapping[str, list[Any]]
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
            "labels": self.labels.split(",") if self.labels else None,
            "problem_type": self.problem,
            "separator": self.separator,
            "metrics": self.metrics.split(",") if self.metrics else None,
            "bad_rows": self.bad_rows or "error",
        }


@dataclass(frozen=True)
class DataOptions:
    """One split of a task, or one file."""

    task: Annotated[str | None, Option(help=TASK)] = None
    data: Annotated[
        Path | None,
        Option(help="With --task, the folder of its files (by default they are downloaded); else a file."),
    ] = None
    hub: Annotated[str | None, Option(help=HUB)] = None
    split: Annotated[str, Option(help="train, validation or test, with --task or --hub.")] = "validation"

    def given(self) -> bool:
        return bool(self.task or self.data or self.hub)

    def load_task(self, model: "ModelInfo", columns: ColumnOptions) -> "Task":
        """The task, with its labels in the order of the model's logits."""
        from offramp.data import Task
        from offramp.data.checks import has_default_names

        if self.data is None or self.task or self.hub:
            return match_labels(find_task(self.task, self.data, self.hub, columns), model)
        columns.refuse(["problem"], f"the model is for {model.problem}")
        options = columns.options() | {"problem_type": model.problem}
        if not model.problem.has_classes:
            columns.refuse(["labels"], "the model predicts numbers")
        elif not has_default_names(model.labels):
            columns.refuse(["labels"], f"the labels of the model are {', '.join(model.labels)}")
            options["labels"] = list(model.labels)
        task = Task.from_files(
            validation=self.data, **options, unlabelled=["validation"], name=self.data.stem
        )
        return match_labels(task, model)

    @property
    def split_name(self) -> str:
        """The split of the task to use: a single file is its validation split."""
        return self.split if self.task or self.hub else "validation"


def find_task(name: str | None, folder: Path | None, hub: str | None, columns: ColumnOptions) -> "Task":
    from offramp.data import Task

    if hub is not None and (name is not None or folder is not None):
        raise BadOption("use either --hub or --task with --data, not both.")
    if hub is not None:
        path, _, config = hub.partition(":")
        return Task.from_hub(path, config or None, **columns.options())
    if name is None:
        raise BadOption("no data given; use --task, --hub or a file.")
    known = [each.name for each in fields(columns) if each.name != "bad_rows"]
    columns.refuse(known, f"the columns and labels of {name} are known")
    return Task.named(name, folder, bad_rows=columns.bad_rows)


def match_labels(task: "Task", model: "ModelInfo") -> "Task":
    """The task with its labels in the model's order; labels that differ are an error."""
    if task.problem != model.problem:
        raise BadData(f"{task.name} is {task.problem}, but the model is for {model.problem}.")
    return task.with_label_order(model.labels, model.backbone)


def texts_of(columns: Columns) -> list[Any]:
    """The texts of a split, or its pairs."""
    if "text_pair" not in columns:
        return columns["text"]
    return list(zip(columns["text"], columns["text_pair"], strict=True))


def select(columns: Columns, rows: Iterable[int]) -> Columns:
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def collect_trace(
    folder: Path,
    data: DataOptions,
    columns: ColumnOptions,
    runtime: RuntimeOptions,
    batch_tokens: int | None = None,
    chosen: Sequence[int] | None = None,
    by: str | None = None,
) -> "Trace":
    """Collect a trace of all rows or the chosen ones, in PyTorch, or in ONNX Runtime for an exported model. `by` is
    the column of the categories of its texts.

    If the folder contains the model whose predictions are to be kept, the trace has its logits too.
    """
    from offramp.folder import REFERENCE
    from offramp.inference.collect import collect
    from offramp.model_info import ModelInfo
    from offramp.reports.results import RetrofitResults

    task = data.load_task(ModelInfo.read(folder), columns)
    rows: Columns = task.columns(data.split_name)
    categories = None if by is None else cells_of(data, by)
    if chosen is not None:
        rows = select(rows, chosen)
        categories = categories and [categories[row] for row in chosen]
    name = f"{task.name} {data.split_name}" if data.data is None or data.task else data.data.name
    runner = runtime.load(folder, "never", batch_tokens=batch_tokens)
    found = collect(runner, rows, metrics=task.metrics, data=name, progress=in_terminal())
    if (folder / REFERENCE).is_dir():
        original = RetrofitResults.load(folder).original
        log(f"running {original}, whose predictions are to be kept")
        same_length = replace(runtime, max_length=runner.tokenizer.max_length)
        reference = same_length.load(folder / REFERENCE, "never", batch_tokens=batch_tokens)
        logits = collect(reference, rows, progress=in_terminal()).logits[:, -1]
        found = replace(found, reference=logits, reference_name=original)
    warn_about_swapped_labels(found)
    return found if by is None or categories is None else found.categorized(by, categories)


def cells_of(data: DataOptions, column: str) -> list[Any]:
    """The cells of another column of a file."""
    from offramp.data.files import read_file

    if data.data is None or data.task:
        raise BadOption("--by is for a file; name it with --data.")
    file = read_file(data.data)
    if column not in file.column_names:
        raise BadOption(f"--by {column}: {data.data} has the columns {', '.join(file.column_names)}.")
    return [cells[file.column_names.index(column)] for _, cells in file.records]


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
