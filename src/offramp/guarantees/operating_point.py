"""Operating points: how scores become decisions, as in "spam>=0.3"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from offramp.errors import BadOption, UnknownName
from offramp.problems import MULTI_LABEL, SINGLE_LABEL, Array, Problem
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
