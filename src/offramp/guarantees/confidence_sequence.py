"""Bounds on a mean loss that hold at all times together, so they may be checked after every example.

*Reference*: Howard et al. 2021, arXiv:1810.08240; Waudby-Smith and Ramdas 2024, arXiv:2010.09686.

If the mean is p, then for any other q the product of (q/p)^x ((1-q)/(1-p))^(1-x) over the losses x is a martingale
that starts at 1. So is its average over q drawn from a Beta distribution, which ever reaches 1/delta with
probability delta at most (Ville). The bounds enclose the p for which it has not. Losses between 0 and 1 are allowed
too: the factor is a geometric mean, at most the arithmetic one x q/p + (1-x)(1-q)/(1-p), whose mean is 1.
"""

import math
from collections.abc import Callable

PRIOR = 0.5
"""Beta(1/2, 1/2) comes within ln(2 sqrt(examples)) of the best q, whichever it is (Krichevsky, Trofimov 1981)."""


def bounds(lost: float, examples: int, delta: float) -> tuple[float, float]:
    """Lower and upper bound on the mean loss, with confidence 1 - delta; `lost` is the sum of the losses.

    *Example*:

    >>> low, high = bounds(lost=3, examples=100, delta=0.05)
    >>> round(low, 4), round(high, 4)
    (0.0019, 0.1229)
    """
    if not examples:
        return 0.0, 1.0

    def outside(mean: float) -> bool:
        return evidence(lost, examples, mean) >= -math.log(delta)

    observed = lost / examples
    low = bisect(outside, 0.0, observed) if lost > 0 else 0.0
    high = bisect(outside, 1.0, observed) if lost < examples else 1.0
    return low, high


def is_above(mean: float, lost: float, examples: int, delta: float) -> bool:
    """Whether the lower bound is above `mean`."""
    return lost > mean * examples and evidence(lost, examples, mean) >= -math.log(delta)


def evidence(lost: float, examples: int, mean: float) -> float:
    """The logarithm of the martingale against this mean, which is strictly between 0 and 1."""
    kept = examples - lost
    mixture = log_beta(PRIOR + lost, PRIOR + kept) - log_beta(PRIOR, PRIOR)
    return mixture - lost * math.log(mean) - kept * math.log1p(-mean)


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def bisect(outside: Callable[[float], bool], out: float, within: float) -> float:
    """The last point outside, on the way from `out` to `within`."""
    for _ in range(60):
        middle = (out + within) / 2
        if outside(middle):
            out = middle
        else:
            within = middle
    return out
