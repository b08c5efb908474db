"""P-values for "the risk is at most epsilon": how likely is an observed risk this low if the true one is higher?

The loss of each example lies in [0, 1] and the risk is its mean over the population. Each function bounds the
probability of observing a risk this low on n examples when the true risk is epsilon or more.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, rel_entr
from scipy.stats import binom

from offramp.problems import Array

Bound: TypeAlias = Callable[[ArrayLike, int, float], Array]
"""(risk, examples, epsilon) to p-values, of the shape of the risk."""

BETS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.97)
"""Of several gamblers, as shares of the largest bet: small ones win where losses vary much."""
MOST = 1_000_000_000
"""The largest number of examples considered."""


def binomial(risk: ArrayLike, examples: int, epsilon: float) -> Array:
    """Exact for losses of 0 or 1: the probability of at most this many errors.

    *Relation*: `hoeffding_bentkus` also allows losses in between, and is weaker.

    *Example*
    >>> float(binomial(0.0, examples=299, epsilon=0.01).round(4))
    0.0495
    """
    errors = np.round(np.asarray(risk) * examples)
    return np.asarray(binom.cdf(errors, examples, epsilon))


def hoeffding_bentkus(risk: ArrayLike, examples: int, epsilon: float) -> Array:
    """For any losses in [0, 1]: the smaller of Hoeffding's and Bentkus' bounds.

    *Reference*: Bates et al. 2021, arXiv:2101.02703; Angelopoulos et al. 2021, arXiv:2110.01052, section 2.

    *Example*
    >>> float(hoeffding_bentkus(0.05, examples=1000, epsilon=0.1).round(10))
    1.63e-08
    """
    # a sum of floats may be slightly below 0 or above a whole number, which must not change the result
    observed = np.clip(np.asarray(risk, np.float64), 0, 1)
    below = np.minimum(observed, epsilon)
    divergence = rel_entr(below, epsilon) + rel_entr(1 - below, 1 - epsilon)
    errors = np.ceil(np.round(observed * examples, 9))
    bentkus = np.e * binom.cdf(errors, examples, epsilon)
    return np.asarray(np.minimum(np.exp(-examples * divergence), bentkus).clip(max=1.0))


def betting(losses: ArrayLike, epsilon: float) -> float:
    """For any losses in [0, 1], given one by one: the inverse of the money that is won by betting against the risk.

    If the risk is epsilon or more, betting b changes a gambler's money by the factor 1 - b (loss - epsilon), which is
    at most 1 on average. So the mean money of several gamblers reaches 1/p with probability p at most (Markov).

    *Reference*: Waudby-Smith and Ramdas 2024, arXiv:2010.09686.
    *Relation*: `hoeffding_bentkus` knows only the mean loss; where losses vary little, this is far stronger.

    *Example*: the mean loss is 0.03 in both cases, but only the first has it in every example.
    >>> round(betting([0.03] * 200, 0.05), 3), round(betting([0.0] * 194 + [1.0] * 6, 0.05), 3)
    (0.038, 1.0)
    """
    losses = np.asarray(losses, np.float64)
    return float(np.exp(-log_money(losses, epsilon, len(losses))).clip(max=1.0))


def log_money(losses: Array, epsilon: float, examples: int) -> float:
    """The logarithm of the gamblers' mean money after this many examples with such losses."""
    bets = np.array(BETS) / (1 - epsilon)  # the largest bet loses all if the loss is 1
    growth = np.log1p(-np.outer(bets, losses - epsilon)).mean(1)
    return float(logsumexp(examples * growth) - np.log(len(bets)))


def examples_to_bet_on(losses: ArrayLike, epsilon: float, delta: float) -> int | None:
    """How many examples with such losses `betting` needs at level delta; None above a billion.

    *Example*: without losses.
    >>> examples_to_bet_on([0.0], 0.05, 0.05)
    75
    """
    losses = np.asarray(losses, np.float64)
    # the money is a sum of exponentials and 1 at first, so it passes 1 / delta only once
    needed = bisect_left(range(MOST), True, key=lambda n: log_money(losses, epsilon, n) >= -np.log(delta))
    return needed if needed < MOST else None


def examples_needed(epsilon: float, delta: float, risk: float = 0.0, bound: Bound = binomial) -> int | None:
    """How many examples prove risk <= epsilon at level delta when this risk is observed; None above a billion.

    *Example*: without errors it is ln(delta) / ln(1 - epsilon), rounded up.
    >>> examples_needed(0.01, 0.05), examples_needed(0.01, 0.05, risk=0.005), examples_needed(0.01, 0.05, 0.02)
    (299, 1441, None)
    """

    def proves(examples: int) -> bool:
        errors = np.ceil(np.round(risk * examples, 9))
        return bool(bound(errors / examples, examples, epsilon) <= delta)

    numbers = range(1, MOST + 1)
    return None if risk >= epsilon or not proves(MOST) else numbers[bisect_left(numbers, True, key=proves)]
