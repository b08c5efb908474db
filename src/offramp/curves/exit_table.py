"""Who leaves where, for many thresholds at once.

An example leaves at the first exit whose readiness reaches the threshold, so the greatest readiness so far
decides which thresholds have let it go. Counting over all thresholds costs one pass over (examples, exits).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offramp.criteria.base import Criterion
from offramp.policy import Policy

Array: TypeAlias = NDArray[Any]

SAMPLE = 50_000
"""Rows that are enough to spread thresholds by."""


@dataclass(frozen=True)
class Leaving:
    """The exits of all examples for thresholds in order, laxest first."""

    thresholds: Array
    """(thresholds,)"""
    enough: Array
    """(exits, examples): the first so many thresholds are reached at this exit or before."""

    def exits(self, index: int) -> Array:
        """(examples,) the exit that each example takes at one threshold."""
        return np.asarray((self.enough <= index).sum(0))

    def histogram(self) -> Array:
        """(thresholds, exits) how many examples leave at each exit."""
        return np.stack([self._from_exit(exit) for exit in range(len(self.enough))], axis=1).astype(np.int64)

    def total(self, values: Callable[[int], Array]) -> Array:
        """(thresholds,) the sum of values(exit)[example] over all examples, at the exits they take."""
        return np.asarray(sum(self._from_exit(exit, values(exit)) for exit in range(len(self.enough))))

    def counts(self, cells: Callable[[int], Array], number: int) -> Array:
        """(thresholds, number) how many examples fall into which of so many cells(exit)[example]."""
        width = len(self.thresholds) + 1
        changes = np.zeros(number * width, np.int64)
        for exit in range(len(self.enough)):
            start, stop = self._span(exit)
            cell = cells(exit) * width
            changes += np.bincount(cell + start, minlength=changes.size)
            changes -= np.bincount(cell + stop, minlength=changes.size)
        return np.cumsum(changes.reshape(number, width), axis=1)[:, :-1].T

    def _from_exit(self, exit: int, weights: Array | None = None) -> Array:
        width = len(self.thresholds) + 1
        start, stop = self._span(exit)
        change = np.bincount(start, weights, width) - np.bincount(stop, weights, width)
        return np.cumsum(change)[:-1]

    def _span(self, exit: int) -> tuple[Array, Array]:
        """(examples,) the first threshold that makes each example leave here, and the first beyond those."""
        stop = self.enough[exit]
        return (self.enough[exit - 1] if exit else np.zeros_like(stop)), stop


def leaving(policy: Policy, readiness: Array, layers: Sequence[int], thresholds: ArrayLike) -> Leaving:
    """Apply many thresholds, and the layers that a policy allows, to readiness (examples, exits)."""
    wanted = np.asarray(thresholds, np.float64)
    cuts = least_readiness(policy.criterion, wanted)
    order = np.argsort(cuts, kind="stable")
    best = np.full(len(readiness), -np.inf)
    enough = np.empty((len(layers), len(readiness)), np.int32)
    for exit, layer in enumerate(layers):
        if layer >= (policy.min_layer or 0):
            np.maximum(best, readiness[:, exit], out=best)
        everybody = layer >= (policy.max_layer or layers[-1])
        enough[exit] = len(cuts) if everybody else np.searchsorted(cuts[order], best, side="right")
    return Leaving(wanted[order], enough)


def least_readiness(criterion: Criterion, thresholds: Array) -> Array:
    """(thresholds,) the smallest readiness that reaches each: `policy.reached` as a plain >=."""
    level = np.asarray(criterion.level(thresholds), np.float64)
    return np.nextafter(level, np.inf) if not criterion.counts_exits else level


def useful_thresholds(policy: Policy, readiness: Array, layers: Sequence[int], number: int) -> Array:
    """Thresholds that tell the examples apart, at most `number`, evenly spread over what occurs.

    Each lies between two neighbouring values of readiness, so that float noise decides nothing, and has few
    digits. The laxest lets everybody leave at the first exit allowed, the strictest nobody.
    """
    criterion = policy.criterion
    allowed = [exit for exit, layer in enumerate(layers[:-1]) if layer >= (policy.min_layer or 0)]
    every = readiness[:, allowed]
    finite = np.isfinite(every)
    if not finite.any():
        return np.array([out_of_reach(criterion)])
    most = np.max(every, where=finite, initial=-np.inf)
    least = np.min(every[:, 0], where=finite[:, 0], initial=most)
    step = 1 + len(readiness) // SAMPLE
    values = every[::step][finite[::step]]
    values = np.sort([*values[values >= least], least, most])  # a sample may miss the extremes
    distinct = np.unique(values)
    chosen = np.arange(len(distinct))
    if len(distinct) > number - 1:
        picks = np.linspace(0, len(values) - 1, number - 1).astype(int)
        chosen = np.searchsorted(distinct, np.unique(values[picks]))
    nobody = distinct[-1] if not criterion.counts_exits else distinct[-1] + 1
    levels = [*(border(distinct, index, not criterion.counts_exits) for index in chosen.tolist()), nobody]
    thresholds = criterion.sign * np.array(levels)
    return np.asarray(thresholds[np.isfinite(criterion.level(thresholds))])


def border(distinct: Array, index: int, strict: bool) -> float:
    """A level that distinct[index] reaches and distinct[index - 1] does not."""
    value = float(distinct[index])
    if not strict:
        return value
    below = float(distinct[index - 1]) if index else value - max(abs(value), 1.0) / 10
    return short_number_between(below, value)


def out_of_reach(criterion: Criterion) -> float:
    """A threshold that nobody ever reaches: no entropy or count is below 0, no probability above 1."""
    return 1.0 if not criterion.counts_exits and criterion.sign > 0 else 0.0


def short_number_between(low: float, high: float) -> float:
    """The number of fewest digits between two others; the lower one if they are neighbours.

    *Example*
    >>> short_number_between(0.29871, 0.31102), short_number_between(-1.09861, -1.09859)
    (0.3, -1.0986)
    """
    for digits in range(17):
        number = float(f"{(low + high) / 2:.{digits}e}")
        if low < number < high:
            return number
    return low
