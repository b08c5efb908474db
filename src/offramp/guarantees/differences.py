"""Where two sides differ: by class, and the rows with the largest differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.guarantees.comparison import Compared
from offramp.problems import REGRESSION, Array, Problem

MOST = 20
"""Rows that are shown."""


@dataclass(frozen=True)
class ClassDifferences:
    """The rows that the old side puts into one class, or gives one label."""

    name: str
    rows: int
    different: int
    """Those that the new side does not."""


@dataclass(frozen=True)
class Difference:
    """A row on which the sides differ."""

    row: int
    """From 0."""
    old: str
    new: str
    distance: float | None
    """Between the scores, if there are any."""
    text: str | None = None


def by_class(compared: Compared, names: Sequence[str]) -> tuple[ClassDifferences, ...]:
    old, new = compared.decisions
    if compared.problem == REGRESSION:
        return ()
    if not compared.problem.multi_label:
        classes = np.arange(len(names) or int(old.max()) + 1)
        old, new = old[:, None] == classes, new[:, None] == classes
    kept, total = ((old == 1) & (new == 1)).sum(0), (old == 1).sum(0)
    return tuple(
        ClassDifferences(name_of(names, index), int(total[index]), int(total[index] - kept[index]))
        for index in range(len(total))
    )


def largest(
    compared: Compared, names: Sequence[str], tolerance: float | None, texts: Sequence[Any] | None
) -> tuple[Difference, ...]:
    """Where the decisions differ, those with the most different scores first."""
    old, new = compared.decisions
    different = np.flatnonzero(~compared.problem.agree(new, old, tolerance))
    gaps = None if compared.scores is None else score_gaps(*compared.scores)
    if gaps is not None:
        different = different[np.argsort(-gaps[different], kind="stable")]
    return tuple(
        Difference(
            int(compared.rows[index]),
            shown(old[index], compared.problem, names),
            shown(new[index], compared.problem, names),
            None if gaps is None else float(gaps[index]),
            None if texts is None else one_text(texts[int(compared.rows[index])]),
        )
        for index in different[:MOST]
    )


def score_gaps(old: Array, new: Array) -> Array:
    """(rows,) the largest distance between two scores of a row."""
    return np.asarray(np.abs(old - new).reshape(len(old), -1).max(1))


def shown(decision: Any, problem: Problem, names: Sequence[str]) -> str:
    if problem == REGRESSION:
        return f"{decision:.4g}"
    if problem.multi_label:
        return ", ".join(name_of(names, label) for label in np.flatnonzero(decision).tolist()) or "none"
    return name_of(names, int(decision))


def name_of(names: Sequence[str], index: int) -> str:
    return names[index] if names else str(index)


def one_text(text: str | tuple[str, ...]) -> str:
    return text if isinstance(text, str) else " | ".join(text)
