"""Answers to the test set of a benchmark, in the files that its server takes.

An answer is written by the name of its label, never by its number, so the order in which a model counts its
labels (some checkpoints have entailment and neutral the other way round) cannot exchange them.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from offramp.atomic import write_files
from offramp.errors import BadData
from offramp.problems import REGRESSION
from offramp.tasks.base import Task

SIMILARITY = (0.0, 5.0)
"""The scale of STS-B, the only task of GLUE and ELUE whose answer is a number."""


def write_submission(
    task: Task,
    idx: Sequence[int],
    answers: Sequence[int] | Sequence[float],
    folder: str | Path,
    layers: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
) -> list[Path]:
    """Write the answers (`MRPC.tsv` for GLUE, `mrpc.tsv` for ELUE) and, if given, the layers they came from.

    Answers are indices into `labels`, the names in the order of the model that gave them (the task's own if
    not said), or numbers for STS-B. `idx` is the column of that name in the test split. `layers`, from 1, go
    to `mrpc_exit_layer.tsv`. All files are written, or none.
    """
    if task.submission is None:
        raise BadData(f"{task.name} has no server that takes predictions; write the answers as you like them")
    columns = {f"{task.submission}.tsv": ("prediction", _predictions(task, answers, labels or task.labels))}
    if layers is not None:
        columns[f"{task.submission}_exit_layer.tsv"] = ("exit_layer", [str(int(layer)) for layer in layers])
    _check_idx(idx, [len(cells) for _, cells in columns.values()])
    files = {Path(folder) / name: _table(idx, *column) for name, column in columns.items()}
    write_files(files)
    return [*files]


def _predictions(task: Task, answers: Iterable[float], labels: Sequence[str] | None) -> list[str]:
    if task.problem_type == REGRESSION:
        return [_similarity(float(answer)) for answer in answers]
    if labels is None or set(labels) != set(task.labels or ()):
        raise BadData(f"the model's labels are {labels}, expected those of the task: {task.labels}")
    known = dict(enumerate(labels))
    wrong = [answer for answer in answers if answer not in known]
    if wrong:
        raise BadData(f"answer {wrong[0]!r}, expected the index of a label, 0 to {len(labels) - 1}")
    return [known[int(answer)] for answer in answers]


def _similarity(answer: float) -> str:
    if not math.isfinite(answer):
        raise BadData(f"answer {answer}, expected a number: has the training diverged?")
    low, high = SIMILARITY
    return str(round(min(max(answer, low), high), 6))


def _check_idx(idx: Sequence[int], lengths: Sequence[int]) -> None:
    if any(length != len(idx) for length in lengths):
        raise BadData(f"{len(idx)} indices, and columns of {lengths} answers: expected one for each index")
    if len(set(idx)) < len(idx):
        raise BadData("an index occurs twice, expected the column idx of the test split")


def _table(idx: Sequence[int], heading: str, cells: Sequence[str]) -> str:
    rows = [f"index\t{heading}", *(f"{int(number)}\t{cell}" for number, cell in zip(idx, cells, strict=True))]
    return "\n".join(rows) + "\n"
