"""P-values for "the risk is at most epsilon": how likely are losses this low if the true risk is higher?

The loss of each example lies in [0, 1], or in [-1, 1] if it may be a gain, and the risk is its mean over the
population. Each p-value bounds the probability of observing such losses when the true risk is epsilon or more.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from offramp.problems import Array

BETS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.97)
"""Bet sizes, as fractions of the largest safe bet; small bets win when losses vary a lot."""
NET_BETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""For losses most of which are nearly what is bet on, such as 0 in [-1, 1]."""
MOST = 1_000_000_000
"""The largest number of examples considered."""


def binomial(losses: ArrayLike, epsilon: float) -> float:
    """Exact for losses of 0 or 1: the probability of at most this many errors.

    *Relation*: `betting` also allows losses in between, and is weaker.

    *Example*
    >>> round(binomial([0] * 299, epsilon=0.01), 4)
    0.0495
    """
    return binomial_tail(round(float(np.sum(losses))), np.size(losses), epsilon)


def binomial_tail(errors: int, examples: int, epsilon: float) -> float:
    from scipy.special import betainc  # not installed where models only run

    return 1.0 if errors >= examples else float(betainc(examples - errors, errors + 1, 1 - epsilon))


def binomial_examples(losses: ArrayLike, epsilon: float, delta: float) -> int | None:
    """How many examples with this mean loss `binomial` needs at level delta; None above a billion.

    *Example*: without errors it is ln(delta) / ln(1 - epsilon), rounded up.
    >>> [binomial_examples(losses, 0.01, 0.05) for losses in ([0], [0.005], [0.02])]
    [299, 1441, None]
    """
    risk = float(np.asarray(losses, np.float64).mean())

    def proves(examples: int) -> bool:
        errors = int(np.ceil(np.round(risk * examples, 9)))
        return binomial_tail(errors, examples, epsilon) <= delta

    numbers = range(1, MOST + 1)
    return None if risk >= epsilon or not proves(MOST) else numbers[bisect_left(numbers, True, key=proves)]


def betting(losses: ArrayLike, epsilon: float, bets: Sequence[float] = BETS) -> float:
    """For any losses up to 1: the inverse of the money that is won by betting against the risk.

    If the risk is epsilon or more, betting b changes a gambler's money by the factor 1 - b (loss - epsilon), which is
    at most 1 on average. So the mean money of several gamblers reaches 1/p with probability p at most (Markov).

    *Reference*: Waudby-Smith and Ramdas 2024, arXiv:2010.09686.
    *Relation*: `binomial` is stronger for losses of 0 or 1.

    *Example*: the mean loss is 0.03 in both cases, but only the first has it in every example.
    >>> round(betting([0.03] * 200, 0.05), 3), round(betting([0.0] * 194 + [1.0] * 6, 0.05), 3)
    (0.038, 1.0)
    """
    losses = np.asarray(losses, np.float64)
    return float(np.exp(-log_money(losses, epsilon, len(losses), bets)).clip(max=1.0)) if len(losses) else 1.0


def log_money(losses: Array, epsilon: float, examples: int, bets: Sequence[float] = BETS) -> float:
    """The logarithm of the gamblers' mean money after this many examples with such losses."""
    sizes = np.array(bets) / (1 - epsilon)  # the largest bet loses all if the loss is 1
    values, counts = np.unique(losses, return_counts=True)
    growth = np.log1p(-np.outer(sizes, values - epsilon)) @ counts / len(losses)
    return float(np.logaddexp.reduce(examples * growth) - np.log(len(sizes)))


def betting_examples(
    losses: ArrayLike, epsilon: float, delta: float, bets: Sequence[float] = BETS
) -> int | None:
    """How many examples with such losses `betting` needs at level delta; None above a billion.

    *Example*: without losses.
    >>> betting_examples([0.0], 0.05, 0.05)
    75
    """
    losses = np.asarray(losses, np.float64)
    # the money is a sum of exponentials and 1 at first, so it passes 1 / delta only once
    needed = bisect_left(
        range(MOST), True, key=lambda n: log_money(losses, epsilon, n, bets) >= -np.log(delta)
    )
    return needed if needed < MOST else None


@dataclass(frozen=True)
class Bound:
    p_value: Callable[[ArrayLike, float], float]
    """The p-value of losses, for epsilon."""
    examples_needed: Callable[[ArrayLike, float, float], int | None]
    """With such losses, for epsilon and delta."""
    lowest: float = 0.0
    """The lowest loss; the highest is 1."""

    opposite: "Bound | None" = None
    """The bound for mirrored losses, where another one is stronger."""

    def upper(self, losses: ArrayLike, delta: float) -> float:
        """The smallest epsilon that is proven at level delta; the highest loss if there is none.

        >>> round(BOUNDS["exact binomial"].upper([0] * 299, 0.05), 3)
        0.01
        """
        return bisect(lambda epsilon: self.p_value(losses, epsilon) <= delta, 1.0, self.lowest)

    def lower(self, losses: ArrayLike, delta: float) -> float:
        """The largest risk that the true one is proven to exceed; the lowest loss if there is none."""
        return float(self.mirrored((self.opposite or self).upper(self.mirrored(losses), delta)))

    def refuting_p_value(self, losses: ArrayLike, epsilon: float) -> float:
        """For "the risk is more than epsilon"."""
        return (self.opposite or self).p_value(self.mirrored(losses), float(self.mirrored(epsilon)))

    def examples_to_refute(self, losses: ArrayLike, epsilon: float, delta: float) -> int | None:
        opposite = self.opposite or self
        return opposite.examples_needed(self.mirrored(losses), float(self.mirrored(epsilon)), delta)

    def mirrored(self, losses: ArrayLike) -> Array:
        """Losses, or a bound, turned around: low becomes high."""
        return np.asarray(1 + self.lowest - np.asarray(losses, np.float64))


def bisect(holds: Callable[[float], bool], true: float, false: float) -> float:
    """The last point where something holds, on the way from one where it does to one where it does not."""
    for _ in range(60):
        middle = (true + false) / 2
        if holds(middle):
            true = middle
        else:
            false = middle
    return true


SMALL_BETS = Bound(partial(betting, bets=NET_BETS), partial(betting_examples, bets=NET_BETS))
BOUNDS = {
    "exact binomial": Bound(binomial, binomial_examples),
    "betting": Bound(betting, betting_examples, opposite=SMALL_BETS),
    "paired betting": replace(SMALL_BETS, lowest=-1.0),
}
"""Names are stored in certificates."""
