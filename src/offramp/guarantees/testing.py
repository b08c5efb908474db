"""Fixed-sequence testing: which of several hypotheses, tested from the safest to the riskiest, are proven.

*Reference*: Learn then Test, Angelopoulos et al. 2021, arXiv:2110.01052.

Each hypothesis is tested at the full level delta, and testing stops at the first failure: to prove a false one, the
first false one in the sequence must pass by chance, which has probability at most delta. The sequence must be fixed
before the data are seen.

With bounds by class a hypothesis passes if it passes for every class. One that is false for some class must then
pass for that class too, so each class is also tested at the full level delta. The same is true of all rows and of
distinct unseen texts: the first test is valid if texts keep their frequency, the second if they repeat in these data
and not later, and what passes both holds in either case.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.guarantees.bounds import BOUNDS
from offramp.problems import Array


@dataclass(frozen=True)
class Part:
    """The examples that share one bound: all of them or those of one class, or the unseen ones among these."""

    epsilon: float
    rows: Array
    """(examples,) a mask."""
    of_class: str | None = None
    unseen: bool = False
    """Distinct texts that were not learned from, each counted once."""


@dataclass(frozen=True)
class PartResult:
    """The losses of the examples of one part, and what they prove."""

    part: Part
    losses: Array
    bound: str
    """A name in `BOUNDS`."""

    @property
    def examples(self) -> int:
        return len(self.losses)

    @property
    def risk(self) -> float:
        """The mean loss."""
        return float(self.losses.mean()) if self.examples else 0.0

    @property
    def p_value(self) -> float:
        return BOUNDS[self.bound].p_value(self.losses, self.part.epsilon)


def first_failure(sequence: Iterable[Array], parts: Sequence[Part], bound: str, delta: float) -> int:
    """The number of hypotheses that are proven; each is given by the losses of the examples, the safest first."""
    passed, tested = 0, None
    for losses in sequence:
        is_new = tested is None or not np.array_equal(losses, tested)
        if is_new and any(result.p_value > delta for result in results_of(losses, parts, bound)):
            break
        passed, tested = passed + 1, losses
    return passed


def results_of(losses: Array, parts: Sequence[Part], bound: str) -> list[PartResult]:
    return [PartResult(part, losses[part.rows], bound) for part in parts]
