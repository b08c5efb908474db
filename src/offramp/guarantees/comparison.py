"""Two sides of the same rows: what each decides, what the new one loses against the old, and where they differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from offramp.errors import BadData, BadOption
from offramp.guarantees.losses import LOSSES, Loss, Reference
from offramp.guarantees.operating_point import OperatingPoint
from offramp.guarantees.testing import class_members, class_names
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Array, Problem
from offramp.wording import count

MOST = 20
"""Rows that are shown."""
Key = tuple[str, str]
"""A risk, and a group of rows, or an empty name for all rows."""


class Predicted:
    """Rows of scores that are computed when they are needed, each once."""

    def __init__(self, rows: int, predict: Callable[[Array], Array]) -> None:
        self.rows = rows
        self.predict = predict
        """(rows,) numbers of rows -> (rows, labels) or (rows,) scores."""
        self.scores: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: Array) -> Array:
        missing = [row for row in rows.tolist() if row not in self.scores]
        if missing:
            self.scores |= dict(zip(missing, self.predict(np.array(missing)), strict=True))
        return np.array([self.scores[row] for row in rows.tolist()])


@dataclass(frozen=True)
class Compared:
    """Both sides of some rows."""

    rows: Array
    decisions: tuple[Array, Array]
    """Old and new: (rows,) classes, numbers, or 1 for yes; (rows, labels) 0 or 1."""
    problem: Problem
    """The meaning of the decisions."""
    scores: tuple[Array, Array] | None
    """None if there are only labels."""
    losses: Mapping[Key, Array]
    """(rows,) by risk and group; NaN for rows that do not count."""


@dataclass(frozen=True)
class Comparison:
    """How the values of two sides are compared."""

    old: Any
    new: Any
    """Each an array or `Predicted`: labels (rows,), numbers (rows,), scores or decisions (rows, labels)."""
    risks: Sequence[str]
    names: tuple[str, str]
    """What the sides are called."""
    point: OperatingPoint
    label_names: tuple[str, ...]
    labels: Array | None
    """The correct ones."""
    tolerance: float | None
    by: str = ""
    """What groups of rows are: "class", or what categories are called; empty: there are none."""
    categories: Array | None = None
    """(rows,) the name of the category of each."""

    def check(self) -> None:
        """An error for a bad row even if it is never compared, unless the rows are yet to be predicted."""
        for values, name in zip((self.old, self.new), self.names, strict=True):
            if not isinstance(values, Predicted):
                self.checked(values, np.arange(len(values)), name)

    def compare(self, rows: Array) -> Compared:
        sides = zip((self.old, self.new), self.names, strict=True)
        old, new = (self.checked(np.asarray(values[rows]), rows, name) for values, name in sides)
        if old.shape[1:] != new.shape[1:] or old.dtype.kind != new.dtype.kind:
            raise BadData(
                f"{self.names[0]} and {self.names[1]} have different columns; compare like with like"
            )
        problem, decisions = self.problem(old), (self.decide(old), self.decide(new))
        labels = None if self.labels is None else self.correct(self.labels[rows], rows, problem)
        reference = Reference(decisions[0], labels, problem, self.tolerance)
        scores = (old, new) if is_scores(old) else None
        losses = {}
        for risk in self.risks:
            loss = self.loss(risk, problem)
            of_all = self.losses(loss, decisions[1], reference, scores)
            for group, members in self.groups(rows, reference, loss).items():
                losses[risk, group] = np.where(members, of_all, np.nan)
        return Compared(rows, decisions, problem, scores, losses)

    def groups(self, rows: Array, reference: Reference, loss: Loss) -> dict[str, Array]:
        """(rows,) the members of each."""
        if not self.by:
            return {"": np.ones(len(rows), bool)}
        if self.categories is not None:
            return {name: self.categories[rows] == name for name in self.group_names}
        classes = np.asarray(reference.labels if loss.needs_labels else reference.predictions)
        if not self.point.is_argmax and not reference.problem.multi_label:
            return dict(zip(self.group_names, (classes == 1, classes == 0), strict=True))
        return class_members(reference.problem, self.group_names, classes)

    @cached_property
    def group_names(self) -> list[str]:
        if not self.by:
            return [""]
        if self.categories is not None:
            return [*map(str, np.unique(self.categories))]
        some = np.asarray(self.old[np.arange(1)])
        problem = self.problem(some)
        if problem == REGRESSION:
            raise BadOption("by='class' is for classes, and these are numbers")
        if self.point.is_argmax:
            return class_names(problem, self.label_names or [*map(str, range(some.shape[-1]))])
        return class_names(MULTI_LABEL, [*self.point.thresholds])

    def losses(
        self, loss: Loss, decisions: Array, reference: Reference, scores: tuple[Array, Array] | None
    ) -> Array:
        if loss.compares == "scores":
            if scores is None:
                raise BadOption(f"risk='score' needs scores, and {self.names[0]} has labels only")
            return loss.values(scores[1], replace(reference, predictions=scores[0]))
        losses = loss.values(decisions, reference)
        return losses if loss.among is None else np.where(loss.among(reference), losses, np.nan)

    def loss(self, risk: str, problem: Problem) -> Loss:
        """The loss that a risk means for this problem."""
        loss = LOSSES["label_accuracy" if risk == "accuracy" and problem.multi_label else risk]
        if loss.yes_or_no and self.point.is_argmax and not problem.multi_label:
            raise BadOption(
                f"risk={risk!r} is about yes and no; pass decide=..., such as 'spam>=0.5' or 'spam'"
            )
        if loss.compares != "scores" and problem == REGRESSION and self.tolerance is None:
            raise BadOption(
                "numbers need tolerance=..., within which they count as equal, or decide='score>=...'"
            )
        return loss

    def checked(self, values: Array, rows: Array, name: str) -> Array:
        """Labels as text, decisions about several labels as integers, finite scores as floats."""
        if is_labels(values):
            labels = values.astype(str)
            check_known(labels, self.label_names, rows, name, "not one of the labels")
            return labels
        if values.dtype.kind not in "fiub" or values.ndim not in (1, 2):
            raise BadData(f"{name}: expected for each row a label, a number, or a row of scores")
        if not is_scores(values):
            return values.astype(np.int64)
        bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
        if len(bad):
            raise BadData(
                f"{name}, row {rows[bad[0]] + 1}: a score is NaN or infinite, so nothing is certified"
            )
        return values.astype(np.float64)

    def problem(self, values: Array) -> Problem:
        if not self.point.is_argmax:
            return self.point.problem
        if values.ndim == 2:
            return SINGLE_LABEL if is_scores(values) else MULTI_LABEL
        return REGRESSION if is_scores(values) else SINGLE_LABEL

    def decide(self, values: Array) -> Array:
        if self.problem(values) == REGRESSION or (values.ndim == 2 and not is_scores(values)):
            if self.point.is_argmax:
                return values
            raise BadOption(
                f"decide={str(self.point)!r} needs scores, and {self.names[0]} has decisions only"
            )
        if is_scores(values):
            scores = values.reshape(len(values), -1)
            return self.point.decide(scores, self.score_names(scores.shape[1]))
        if any(threshold is not None for threshold in self.point.thresholds.values()):
            raise BadOption(f"decide={str(self.point)!r} needs scores, and {self.names[0]} has labels only")
        return self.point.decide(one_hot(values, self.label_names), self.label_names)

    def score_names(self, columns: int) -> Sequence[str]:
        if self.label_names and len(self.label_names) != columns:
            raise BadOption(
                f"{count(len(self.label_names), 'label name')} for {count(columns, 'column')} of scores"
            )
        return self.label_names or [*map(str, range(columns))]

    def correct(self, labels: Array, rows: Array, problem: Problem) -> Array:
        """The correct labels, as decisions."""
        if problem == REGRESSION:
            return self.checked(labels.astype(np.float64), rows, "labels")
        if labels.ndim == 2:
            return labels if self.point.is_argmax else labels[:, self.point.columns(self.label_names)]
        if labels.dtype.kind == "f":  # numbers that are decided about at a cut
            return self.point.decide(self.checked(labels, rows, "labels")[:, None], ("",))
        names = labels.astype(str)
        if self.point.is_argmax:
            check_known(names, self.label_names, rows, "labels", "not one of the labels")
        chosen = one_hot(names, [*self.point.thresholds] or self.label_names)
        return OperatingPoint(dict.fromkeys(self.point.thresholds, 1.0)).decide(
            chosen, [*self.point.thresholds]
        )

    def decision_names(self, problem: Problem) -> Sequence[str]:
        """The names of decisions; of several labels, the names of those."""
        if problem.multi_label or self.point.is_argmax:
            return [*self.point.thresholds] or self.label_names
        (label,) = self.point.thresholds
        return [f"not {label}", label]


def is_labels(values: Array) -> bool:
    return values.ndim == 1 and values.dtype.kind in "OUSiub"


def is_scores(values: Array) -> bool:
    return values.dtype.kind == "f"


def one_hot(labels: Array, names: Sequence[str]) -> Array:
    return np.asarray(labels[:, None] == np.array(names), np.float64)


def check_known(labels: Array, known: Sequence[str], rows: Array, name: str, fault: str) -> None:
    unknown = np.flatnonzero(~np.isin(labels, np.array(known, str)))
    if len(unknown):
        raise BadData(
            f"{name}, row {rows[unknown[0]] + 1}: the label {str(labels[unknown[0]])!r} is {fault}; if it belongs "
            "there, list all labels with label_names=..."
        )


def common_labels(old: Any, new: Any, names: tuple[str, str]) -> tuple[str, ...]:
    """The labels of both sides, which must be the same; none if they hold scores."""
    if not all(isinstance(side, np.ndarray) and is_labels(side) for side in (old, new)):
        return ()
    sides = old.astype(str), new.astype(str)
    labels = [np.unique(side).tolist() for side in sides]
    for side, name, other, others in zip(sides, names, names[::-1], labels[::-1], strict=True):
        check_known(side, others, np.arange(len(side)), name, f"not in {other}")
    return tuple(labels[0])


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
