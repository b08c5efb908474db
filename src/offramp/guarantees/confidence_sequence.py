"""Bounds on a mean loss, and a test for one that may change; both may be looked at after every example.

*Reference*: Howard et al. 2021, arXiv:1810.08240; Waudby-Smith and Ramdas 2024, arXiv:2010.09686.

If the mean is p, then for any other q the product of (q/p)^x ((1-q)/(1-p))^(1-x) over the losses x is a martingale
that starts at 1. So is its average over q drawn from a Beta distribution, which ever reaches 1/delta with
probability delta at most (Ville). The bounds enclose the p for which it has not. Losses between 0 and 1 are allowed
too: the factor is a geometric mean, at most the arithmetic one x q/p + (1-x)(1-q)/(1-p), whose mean is 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

PRIOR = 0.5
"""Beta(1/2, 1/2) comes within ln(2 sqrt(examples)) of the best q, whichever it is (Krichevsky, Trofimov 1981)."""
ABOVE = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Gamblers bet as is best if the mean is so many times the bound."""
BELOW = (0.0, 0.25, 0.5, 0.75)
"""The same for the other side."""
INTERVAL = 100
"""Examples between two moments at which gamblers start."""
MOST_MONEY = 1e12
"""More is not counted: it would be too large for a float one day."""


@dataclass
class ChangeTest:
    """Whether a mean loss is above a bound, or has been since any earlier example; or the same for below.

    A gambler who expects the mean m multiplies what is at stake by 1 + (m - bound) (x - bound) / (bound (1 - bound))
    with each loss x. On average that is at most 1 as long as the mean is not beyond the bound, so `money`, which
    starts at 1, ever reaches 1/delta with probability delta at most (Ville). In a long good past gamblers lose what
    they have. Therefore only a part is given to those who start first, and at every later start some of the rest to
    new ones: the money is a mixture over the time of a change.

    *Example*: where every fourth example is lost, 16 of them are proof, and 32 after 10,000 good ones.

    >>> fresh, old = ChangeTest(0.02), ChangeTest(0.02)
    >>> for loss in [0.0, 0.0, 0.0, 1.0] * 4:
    ...     fresh.add(loss)
    >>> for loss in [0.0] * 10_000 + [0.0, 0.0, 0.0, 1.0] * 8:
    ...     old.add(loss)
    >>> fresh.money > 1 / 0.05, old.money > 1 / 0.05
    (True, True)
    """

    bound: float
    """Strictly between 0 and 1."""
    above: bool = True
    examples: int = 0
    stakes: list[float] = field(default_factory=list)
    """The money of the gamblers of each expectation."""

    def __post_init__(self) -> None:
        most = (1 + self.bound) / 2
        expected = [min(times * self.bound, most) for times in (ABOVE if self.above else BELOW)]
        variance = self.bound * (1 - self.bound)
        self.bets = [(mean - self.bound) / variance for mean in expected]
        self.stakes = self.stakes or [0.0] * len(self.bets)

    @property
    def money(self) -> float:
        return reserve(math.ceil(self.examples / INTERVAL)) + sum(self.stakes)

    def add(self, loss: float) -> None:
        if self.examples % INTERVAL == 0:
            starts = self.examples // INTERVAL
            given = (reserve(starts) - reserve(starts + 1)) / len(self.bets)
            self.stakes = [stake + given for stake in self.stakes]
        self.examples += 1
        surprise = loss - self.bound
        self.stakes = [
            min(stake * (1 + bet * surprise), MOST_MONEY)
            for stake, bet in zip(self.stakes, self.bets, strict=True)
        ]


def reserve(starts: int) -> float:
    """The money that is not at stake after so many starts. It shrinks so slowly that each start gets nearly as much
    as it could if their number were known."""
    return math.log(2) / math.log(starts + 2)


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
