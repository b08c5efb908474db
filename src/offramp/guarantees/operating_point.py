"""Operating points: how scores become decisions, as in "spam>=0.3"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Self

import numpy as np

from offramp.errors import BadOption, UnknownName
from offramp.numerics import finite_rows
from offramp.problems import MULTI_LABEL, SINGLE_LABEL, Array, MultiLabel, Problem
from offramp.wording import did_you_mean


@dataclass(frozen=True)
class OperatingPoint:
    """The most likely class; or yes and no, for each of the labels that are named.

    >>> OperatingPoint.parse("toxic>=0.5, insult>=0.7").thresholds
    {'toxic': 0.5, 'insult': 0.7}
    """

    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    """By label: the score from which the decision is yes; None: yes if the label is the most likely one. Empty: the
    decision is the most likely class. In a regression the label may have any name."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """`label>=threshold`, several of them with commas; `label` alone; or nothing, for the most likely class."""
        thresholds: dict[str, float | None] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            label, mark, number = (piece.strip() for piece in part.rpartition(">="))
            try:
                thresholds[label if mark else number] = float(number) if mark else None
            except ValueError:
                raise BadOption(f"decide={text!r}: expected LABEL>=NUMBER, such as spam>=0.3") from None
        if any(value is not None and not np.isfinite(value) for value in thresholds.values()):
            raise BadOption(f"decide={text!r}: a threshold must be a finite number")
        if None in thresholds.values() and len(thresholds) > 1:
            raise BadOption(
                f"decide={text!r}: every label needs a threshold, or there must be a single label"
            )
        return cls(thresholds)

    def __str__(self) -> str:
        parts = (
            label if value is None else f"{label}>={value:.15g}" for label, value in self.thresholds.items()
        )
        return ",".join(parts)

    @property
    def is_argmax(self) -> bool:
        return not self.thresholds

    def decisions(self, problem: Problem, names: Sequence[str]) -> Problem:
        """What a model with these outputs decides; an error if it cannot decide so."""
        return problem if self.is_argmax else Decisions(self, problem, names)

    @property
    def problem(self) -> Problem:
        """The meaning of the decisions: a class or yes and no; or yes and no for several labels."""
        return MULTI_LABEL if len(self.thresholds) > 1 else SINGLE_LABEL

    def decide(self, scores: Array, names: Sequence[str]) -> Array:
        """(...) classes, or 1 for yes; with several thresholds (..., thresholds).

        *Shapes*: `scores` (..., labels), whose names are given; or (..., 1) for a regression.

        >>> scores = np.array([[0.6, 0.4], [0.8, 0.2]])
        >>> [OperatingPoint.parse(text).decide(scores, ["ham", "spam"]).tolist() for text in ("", "spam>=0.3")]
        [[0, 0], [1, 0]]
        """
        if self.is_argmax:
            best: Array = scores.argmax(-1)
            return best
        decided = [
            scores.argmax(-1) == index if value is None else scores[..., index] >= value
            for index, value in zip(self.columns(names), self.thresholds.values(), strict=True)
        ]
        return (decided[0] if len(decided) == 1 else np.stack(decided, -1)).astype(np.int64)

    def columns(self, names: Sequence[str]) -> list[int]:
        """The position of each label that is named."""
        if len(names) == 1:  # a regression: its number has no name
            return [0] * len(self.thresholds)
        unknown = [label for label in self.thresholds if label not in names]
        if unknown:
            raise UnknownName(f"decide={str(self)!r}: unknown label {did_you_mean(unknown[0], names)}")
        return [list(names).index(label) for label in self.thresholds]


class Decisions(MultiLabel):
    """A model's outputs at an operating point: as a problem, yes or no for each label that is named.

    Rules then compare yes and no of each decision, and not the classes of the model.

    >>> from offramp.problems import REGRESSION
    >>> stars = Decisions(OperatingPoint.parse("stars>=2.5"), REGRESSION, ["stars"])
    >>> stars.margins(np.array([[3.0], [1.0]])).tolist(), stars.named_decisions(np.array([[3.0], [1.0]]))
    ([[0.5], [-1.5]], [True, False])
    """

    __slots__ = ("columns", "outputs", "thresholds")
    outputs: Problem
    columns: list[int]
    thresholds: dict[str, float | None]

    def __new__(cls, point: OperatingPoint, outputs: Problem, names: Sequence[str]) -> Self:
        self = super().__new__(cls, MULTI_LABEL)
        self.outputs, self.columns, self.thresholds = outputs, point.columns(names), dict(point.thresholds)
        if outputs.of_tokens:
            raise BadOption(
                f"decide={str(point)!r}: an operating point is for texts, and this model tags tokens"
            )
        for threshold in self.thresholds.values():
            if outputs.has_classes and threshold is not None and not 0 < threshold < 1:
                raise BadOption(f"decide={str(point)!r}: a threshold of a probability is between 0 and 1")
            if not outputs.has_classes and (threshold is None or len(self.thresholds) > 1):
                raise BadOption(f"decide={str(point)!r}: a number has one cut, such as score>=2.5")
        return self

    def margins(self, logits: Array) -> Array:
        """(..., thresholds) float32 from logits (..., outputs): how far above its threshold each score is, in
        log-odds or in units of a regression; above 0 for yes, also where the score is the threshold."""
        margins = [
            self.margin(logits.astype(np.float64), column, threshold)
            for column, threshold in zip(self.columns, self.thresholds.values(), strict=True)
        ]
        stacked: Array = np.stack(margins, -1)
        stacked = np.where(stacked == 0, np.finfo(np.float32).tiny, stacked)
        # a row that is not finite is not ready, even if the outputs that are named are finite
        return np.where(finite_rows(logits)[..., None], stacked, np.nan).astype(np.float32)

    def margin(self, logits: Array, column: int, threshold: float | None) -> Array:
        score: Array = logits[..., column]
        if not self.outputs.has_classes:
            return score - (threshold or 0.0)
        needed = 0.0 if threshold is None else log(threshold / (1 - threshold))
        if self.outputs.multi_label:
            return score - needed
        others = np.concatenate([logits[..., :column], logits[..., column + 1 :]], -1)
        with np.errstate(invalid="ignore"):  # inf - inf
            rival: Array = others.max(-1)
            if threshold is not None and others.shape[-1] > 1:  # log-odds against all others together
                rival = rival + np.log(np.exp(others - rival[..., None]).sum(-1))
            return score - rival - needed

    def decode(self, logits: Array) -> Array:
        return super().decode(self.margins(logits))

    def choices(self, logits: Array) -> Array:
        return super().choices(self.margins(logits))

    def truth(self, labels: Array) -> Array:
        """(examples, thresholds) the decisions that correct labels stand for."""
        if not self.outputs.has_classes:
            cuts = [threshold for threshold in self.thresholds.values() if threshold is not None]
            return np.asarray(labels[:, None] >= np.array(cuts), np.int64)
        if self.outputs.multi_label:
            return np.asarray(labels[:, np.array(self.columns)])
        return np.asarray(labels[:, None] == np.array(self.columns), np.int64)

    def named_decisions(self, logits: Array) -> list[bool] | list[tuple[str, ...]]:
        """For each row, yes or no; with several thresholds, the labels that are decided to be there."""
        decided = self.decode(logits).astype(bool)
        if len(self.thresholds) == 1:
            return [bool(yes) for yes in decided[:, 0]]
        names = np.array([*self.thresholds])
        return [tuple(names[row].tolist()) for row in decided]
