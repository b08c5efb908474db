"""Which examples a command works on: a task by name, a person's own files, or a data set of the hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offramp.cli.options import TextOption, TextPairOption
from offramp.errors import BadData, BadOption, UnknownName, did_you_mean

if TYPE_CHECKING:
    from offramp.tasks import Task


@dataclass(frozen=True)
class Columns:
    """What the columns of a person's own data are called."""

    text: TextOption = None
    text_pair: TextPairOption = None
    label: Annotated[str | None, Option(help="Column of the label; guessed from its name by default.")] = None
    labels: Annotated[
        str | None, Option(help="Names of the labels with commas; by default those that occur.")
    ] = None
    problem: Annotated[
        str | None,
        Option(
            help="single_label_classification, multi_label_classification or regression; guessed by default."
        ),
    ] = None
    separator: Annotated[str | None, Option(help="What divides the labels of one example.")] = None
    metrics: Annotated[
        str | None, Option(help="What to score by, with commas; the first is the headline.")
    ] = None
    bad_rows: Annotated[
        str | None,
        Option(help="Rows that lack something: error, or drop, which is what known tasks of the hub do."),
    ] = None

    def options(self) -> dict[str, Any]:
        """For `Task.from_files` and `Task.from_hub`."""
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
class Data:
    """One split of a task, or one file."""

    task: Annotated[str | None, Option(help="A known task, such as mrpc; `offramp list tasks`.")] = None
    data: Annotated[
        Path | None,
        Option(help="The folder of the task's files (the hub by default); or, with no task, a file."),
    ] = None
    hub: Annotated[str | None, Option(help="A data set of the hub, NAME or NAME:CONFIG.")] = None
    split: Annotated[str, Option(help="train, validation or test.")] = "validation"

    def task_for(self, model: "Known", columns: Columns) -> "Task":
        """The task, with its labels in the order of the model's answers."""
        from offramp.tasks import Task

        if self.data is not None and not (self.task or self.hub):
            options = columns.options() | {"problem_type": model.problem_type}
            options["labels"] = None if model.problem_type == "regression" else list(model.labels)
            return Task.from_files(
                validation=self.data, **options, unlabelled=["validation"], name=self.data.stem
            )
        return fitting(find_task(self.task, self.data, self.hub, columns), model)

    @property
    def part(self) -> str:
        """The name of the split in the task."""
        return self.split if self.task or self.hub else "validation"


@dataclass(frozen=True)
class Known:
    """What a model answers with."""

    labels: Sequence[str]
    problem_type: str
    encoder: str


def find_task(name: str | None, folder: Path | None, hub: str | None, columns: Columns) -> "Task":
    from offramp.tasks import TASKS, Task

    if hub is not None and (name is not None or folder is not None):
        raise BadOption("--hub is one source, and --task with its --data another; leave one out.")
    if hub is not None:
        path, _, config = hub.partition(":")
        return Task.from_hub(path, config or None, **columns.options())
    if name is None:
        raise BadOption("no data: say --task NAME, --hub NAME, or name files.")
    try:
        return Task.named(name, folder, bad_rows=columns.bad_rows)
    except UnknownName:
        raise UnknownName(f"no task {did_you_mean(name, TASKS)} For own files see --help.") from None


def fitting(task: "Task", model: Known) -> "Task":
    """The task as this model knows it: the same labels, counted as the model counts them."""
    if task.problem_type != model.problem_type:
        raise BadData(f"{task.name} is {task.problem_type}, and the model was made for {model.problem_type}.")
    return task.with_label_order(model.labels, model.encoder)


def texts_in(rows: Any) -> list[Any]:
    """The texts of a loaded split, or its pairs."""
    if "text_pair" not in rows.column_names:
        return list(rows["text"])
    return list(zip(rows["text"], rows["text_pair"], strict=True))
