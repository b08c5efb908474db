"""A criterion with its threshold and limits: which exit each example takes. (Skeleton: signatures are final.)"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offramp.criteria.base import Criterion

Array = NDArray[Any]


@dataclass(frozen=True)
class Decision:
    """What became of each example."""

    exits: Array  # (examples,) index of the exit taken
    answers: Array  # (examples, classes) logits answered with
    finite: Array  # (examples,) False where a logit on the way was NaN or infinite


@dataclass(frozen=True)
class Policy:
    criterion: Criterion
    threshold: float | tuple[float, ...] = 0.0  # in the person's units; per exit when a tuple
    class_thresholds: Mapping[str, float] = field(default_factory=dict)
    min_layer: int | None = None
    max_layer: int | None = None
    certificate: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    def __str__(self) -> str:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    def for_labels(self, names: Sequence[str]) -> Self:
        """The same policy with class thresholds by index instead of by name."""
        raise NotImplementedError

    def exits(
        self,
        logits: ArrayLike,
        gates: ArrayLike | None = None,
        layers: Sequence[int] | None = None,
        problem_type: str | None = None,
    ) -> Array:
        """(examples,) index of the exit that each example takes."""
        raise NotImplementedError

    def decide(
        self,
        logits: ArrayLike,
        gates: ArrayLike | None = None,
        layers: Sequence[int] | None = None,
        problem_type: str | None = None,
    ) -> Decision:
        raise NotImplementedError

    def begin(self, examples: int, layers: Sequence[int], problem_type: str | None = None) -> "Decider":
        raise NotImplementedError


class Decider:
    """The live half: `leaving, answers = decider.step(exit, logits, gate)`, then `decider = decider[~leaving]`."""

    def step(self, exit: int, logits: ArrayLike, gate: ArrayLike | None = None) -> tuple[Array, Array]:
        """(examples,) who leaves here, and (examples, classes) what each would answer here."""
        raise NotImplementedError

    def __getitem__(self, rows: Array) -> "Decider":
        raise NotImplementedError


@dataclass(frozen=True)
class Folded:
    """A criterion folded over all exits, before any threshold."""

    readiness: Array  # (examples, exits), -inf where logits are not finite
    answers: Array  # (examples, exits, classes): the logits themselves, except for `ensemble`


def fold(
    criterion: Criterion,
    logits: ArrayLike,
    gates: ArrayLike | None = None,
    layers: Sequence[int] | None = None,
    problem_type: str | None = None,
) -> Folded:
    """One pass of a criterion over all exits, for sweeping thresholds."""
    raise NotImplementedError


def readiness(
    criterion: Criterion,
    logits: ArrayLike,
    gates: ArrayLike | None = None,
    layers: Sequence[int] | None = None,
    problem_type: str | None = None,
) -> Array:
    """`fold(...).readiness`: (examples, exits)."""
    raise NotImplementedError


def reached(criterion: Criterion, readiness: Array, threshold: ArrayLike) -> Array:
    """Where readiness reaches a threshold given in the person's units.

    `readiness > level` if `criterion.strict`, else `readiness >= level`, with `level = criterion.level(threshold)`:
    `sign * threshold` (sign -1 for entropy and min_probability, +1 for the others), and never reached for a
    patience or window of 0. So a finite readiness r is at the border of `threshold = criterion.sign * r`.
    """
    raise NotImplementedError


def first_exit(reached: Array) -> Array:
    """(examples,) first exit that was reached, the last for whoever reached none; from (examples, exits)."""
    raise NotImplementedError
