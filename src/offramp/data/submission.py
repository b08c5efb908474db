"""Predictions for a benchmark's test set, in the files that its server accepts.

A prediction is written as the name of its label, not as its index, so the order of a model's labels (some checkpoints
have entailment and neutral swapped) does not matter.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from offramp.data.task import Task
from offramp.errors import BadData
from offramp.files import write_files

SCORE_RANGE = (0.0, 5.0)
"""The scale of STS-B, the only regression task of GLUE and ELUE."""


def write_submission(
    task: Task,
    idx: Sequence[int],
    predictions: Sequence[int] | Sequence[float],
    folder: str | Path,
    layers: Sequence[int] | None = None,
) -> list[Path]:
    """Write the predictions (`MRPC.tsv` for GLUE, `mrpc.tsv` for ELUE) and, if given, the layers of their exits.

    Predictions are numbers for STS-B, or else indices into the labels of the task, which are to be in the model's
    order (`Task.with_label_order`). `idx` is the test split's column of that name. `layers`, from 1, go to
    `mrpc_exit_layer.tsv`. Either all files are written or none.
    """
    if task.submission is None:
        raise BadData(f"{task.name} is not part of a benchmark that accepts submissions")
    columns = {f"{task.submission}.tsv": ("prediction", _format(task, predictions))}
    if layers is not None:
        columns[f"{task.submission}_exit_layer.tsv"] = ("exit_layer", [str(int(layer)) for layer in layers])
    _check_idx(idx, [len(cells) for _, cells in columns.values()])
    files = {Path(folder) / name: _table(idx, *column) for name, column in columns.items()}
    write_files(files)
    return [*files]


def _format(task: Task, predictions: Iterable[float]) -> list[str]:
    if task.labels is None:
        return [_format_score(float(score)) for score in predictions]
    names = dict(enumerate(task.labels))
    wrong = [index for index in predictions if index not in names]
    if wrong:
        raise BadData(f"prediction {wrong[0]!r}, expected the index of a label, 0 to {len(names) - 1}")
    return [names[int(index)] for index in predictions]


def _format_score(score: float) -> str:
    if not math.isfinite(score):
        raise BadData(f"prediction {score}, expected a finite number; has the training diverged?")
    low, high = SCORE_RANGE
    return str(round(min(max(score, low), high), 6))


def _check_idx(idx: Sequence[int], lengths: Sequence[int]) -> None:
    if any(length != len(idx) for length in lengths):
        raise BadData(f"column lengths {lengths}, expected {len(idx)}, the length of idx")
    if len(set(idx)) < len(idx):
        raise BadData("an index occurs twice; pass the column idx of the test split")


def _table(idx: Sequence[int], heading: str, cells: Sequence[str]) -> str:
    rows = [f"index\t{heading}", *(f"{int(number)}\t{cell}" for number, cell in zip(idx, cells, strict=True))]
    return "\n".join(rows) + "\n"
