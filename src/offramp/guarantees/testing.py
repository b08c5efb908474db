"""Fixed-sequence testing: which of several hypotheses, tested from the safest to the riskiest, are proven.

*Reference*: Learn then Test, Angelopoulos et al. 2021, arXiv:2110.01052.

Each hypothesis is tested at the full level delta, and testing stops at the first failure: to prove a false one, the
first false one in the sequence must pass by chance, which has probability at most delta. The sequence must be fixed
before the data are seen.

A hypothesis may have parts: bounds on several risks, or within groups such as classes. It passes if every part does.
One that is false must be false in some part, and then pass in that part too, so each part is also tested at the full
level delta. The same is true of all rows and of distinct unseen texts: the first test is valid if texts keep their
frequency, the second if they repeat in these data and not later, and what passes both holds in either case.

Groups may depend on the hypothesis, as the examples that take an exit do on the thresholds: given how many there are,
their losses are still independent draws from what the group loses under this hypothesis.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.losses import LOSSES
from offramp.problems import Array, Problem


@dataclass(frozen=True)
class Part:
    """The examples that a bound on one risk is about: all or those of a group, or the unseen ones among these."""

    risk: str
    epsilon: float
    rows: Array
    """(examples,) a mask."""
    group: str = ""
    unseen: bool = False
    """Distinct texts that were not learned from, each counted once."""


@dataclass(frozen=True)
class PartResult:
    """The losses of the examples of one part, and what they prove."""

    part: Part
    losses: Array

    @property
    def bound(self) -> str:
        """A name in `BOUNDS`."""
        return LOSSES[self.part.risk].bound

    @property
    def examples(self) -> int:
        return len(self.losses)

    @property
    def observed_risk(self) -> float:
        """The mean loss."""
        return float(self.losses.mean()) if self.examples else 0.0

    @property
    def p_value(self) -> float:
        return BOUNDS[self.bound].p_value(self.losses, self.part.epsilon)


def class_names(problem: Problem, names: Sequence[str]) -> list[str]:
    """The classes that examples can have; where they have several labels, or yes and no, also that of none."""
    if not problem.multi_label:
        return [*names]
    return [*names, f"not {names[0]}" if len(names) == 1 else "no label"]


def class_members(problem: Problem, names: Sequence[str], classes: Array) -> dict[str, Array]:
    """(examples,) the members of each of `class_names`."""
    if not problem.multi_label:
        return {name: classes == index for index, name in enumerate(names)}
    return dict(zip(names, [*(classes.T == 1), (classes == 0).all(-1)], strict=True))


def first_failure(sequence: Iterable[Sequence[PartResult]], delta: float) -> int:
    """The number of hypotheses that are proven; each is given by the results of its parts, the safest first."""
    passed, tested = 0, [np.zeros(0)]
    for results in sequence:
        losses = [result.losses for result in results]
        is_new = not passed or len(losses) != len(tested) or not all(map(np.array_equal, losses, tested))
        if is_new and any(result.p_value > delta for result in results):
            break
        passed, tested = passed + 1, losses
    return passed


def results_of(losses: Mapping[str, Array], parts: Sequence[Part]) -> list[PartResult]:
    """From the losses (examples,) by risk."""
    return [PartResult(part, losses[part.risk][part.rows]) for part in parts]
