"""Where two sides differ: by class or another group, and the rows with the largest differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.guarantees.comparison import Compared
from offramp.problems import REGRESSION, Array, Problem

MOST = 20
"""Rows that are shown."""


@dataclass(frozen=True)
class GroupDifferences:
    """The rows of a group, such as those that the old side puts into one class."""

    name: str
    rows: int
    different: int
    """Those on which the sides differ."""


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


def by_class(compared: Compared, names: Sequence[str]) -> tuple[GroupDifferences, ...]:
    """By the class, or by each of the labels, that the old side gives."""
    old, new = compared.decisions
    if compared.problem == REGRESSION:
        return ()
    if compared.problem.multi_label:
        names = [name_of(names, label) for label in range(old.shape[-1])]
        return by_group(new == 0, old == 1, names)
    names = [name_of(names, index) for index in range(len(names) or int(old.max()) + 1)]
    return by_group((old != new)[:, None], old[:, None] == np.arange(len(names)), names)


def by_group(different: Array, members: Array, names: Sequence[str]) -> tuple[GroupDifferences, ...]:
    """`members` (rows, groups) says which rows belong to a group; `different` has its shape, or is (rows, 1)."""
    total, changed = members.sum(0).tolist(), (members & different).sum(0).tolist()
    return tuple(map(GroupDifferences, names, total, changed))


def largest(
    compared: Compared,
    names: Sequence[str],
    tolerance: float | None,
    texts: Sequence[Any] | None,
    most: int = MOST,
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
        for index in different[:most]
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
