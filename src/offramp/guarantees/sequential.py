"""Tests and bounds that may be looked at after every example.

*Reference*: Waudby-Smith and Ramdas 2024, arXiv:2010.09686; without replacement: the same, 2020, arXiv:2006.04347;
confidence sequences: Howard et al. 2021, arXiv:1810.08240.

`SequentialTest` decides whether a risk is at most epsilon, and stops as soon as it can. Gamblers bet as in
`offramp.guarantees.bounds.betting`, some against a risk of epsilon or more, others against a risk of epsilon or less.
If the claim they bet against is true, their mean money ever reaches 1 / delta with probability delta at most (Ville),
whenever one looks. Examples must come in random order.

In a finite population that is drawn without replacement, epsilon is replaced by the mean that the examples left must
have if the mean of all is epsilon.

`ChangeTest` and `bounds` are for a stream that never ends, whose mean loss may change: a server's audit.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from offramp.guarantees.bounds import MOST, NET_BETS, betting_examples, bisect
from offramp.problems import Array

PROVEN, REFUTED, HOPELESS = "proven", "refuted", "hopeless"
PROVING_BETS = (1.0, 1.0, 7 / 8, 3 / 4, 1 / 2, 1 / 4)
"""Fractions of the largest safe bet: the best ones if the risk is 0, 1/8, 1/4, 1/2, 3/4 of epsilon."""
REFUTING_TIMES = (1.25, 1.5, 2.0, 3.0, 5.0)
"""Gamblers of the other side bet as is best if the risk is so many times epsilon."""
LARGEST_REFUTING_BET = 0.9
EDGE = 1e-9
"""How close a bound comes to the lowest or the highest loss."""
FEWEST = 50
"""Examples before a test may be called hopeless."""
PRIOR = 0.5
"""Beta(1/2, 1/2) comes within ln(2 sqrt(examples)) of the best q, whichever it is (Krichevsky, Trofimov 1981)."""
ABOVE = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Gamblers of a `ChangeTest` bet as is best if the mean is so many times the bound."""
BELOW = (0.0, 0.25, 0.5, 0.75)
"""The same for the other side."""
INTERVAL = 100
"""Examples between two moments at which its gamblers start."""
MOST_MONEY = 1e12
"""More is not counted: it would be too large for a float one day."""


@dataclass
class SequentialTest:
    """Add losses until there is a verdict.

    >>> test = SequentialTest(0.02, 0.05)
    >>> test.add(np.zeros(1000)), len(test.losses)
    ('proven', 179)
    """

    epsilon: float
    delta: float
    lowest: float = 0.0
    """The lowest loss, 0 or -1; the highest is 1."""
    population: int | None = None
    """The number of examples in a finite population, about which the claim is."""
    losses: Array = field(default_factory=lambda: np.zeros(0))
    """The losses of the examples up to the verdict."""
    verdict: str | None = None

    def add(self, losses: Array) -> str | None:
        """The verdict, if there is one by now; losses after it are dropped."""
        if self.verdict is None:
            seen, self.losses = len(self.losses), np.concatenate([self.losses, losses])
            hits = {
                side: np.flatnonzero(self.log_money(self.epsilon, side)[seen:] >= -np.log(self.delta))
                for side in (PROVEN, REFUTED)
            }
            first = {side: int(rows[0]) for side, rows in hits.items() if len(rows)}
            if first:
                self.verdict = min(first, key=lambda side: first[side])
                self.losses = self.losses[: seen + first[self.verdict] + 1]
            elif len(self.losses) == self.population:
                self.verdict = PROVEN if self.losses.mean() <= self.epsilon + EDGE else REFUTED
        return self.verdict

    def give_up(self, left: float) -> str | None:
        """The verdict; "hopeless" if a proof cannot be expected from this many further examples.

        It is judged two standard errors in favor of a proof.
        """
        if self.verdict is None and len(self.losses) >= FEWEST:
            growth = log_factors(self.losses, self.means(self.epsilon), self.lowest, PROVEN)
            alive = growth[np.isfinite(growth).all(1)]
            favorable = alive.mean(1) + 2 * alive.std(1) / np.sqrt(len(self.losses))
            future = alive.sum(1) + left * favorable
            if mean_money(future, len(growth)) < -np.log(self.delta):
                self.verdict = HOPELESS
        return self.verdict

    def examples_needed(self) -> int | None:
        """About how many examples like those seen give a verdict; None above a billion."""
        side = REFUTED if self.losses.mean() > self.epsilon else PROVEN
        growth = log_factors(self.losses, self.means(self.epsilon), self.lowest, side).mean(1)
        alive, enough = growth[np.isfinite(growth)], -np.log(self.delta)
        needed = bisect_left(range(MOST), True, key=lambda n: mean_money(n * alive, len(growth)) >= enough)
        return needed if needed < MOST else None

    def upper(self, delta: float) -> float:
        """The smallest epsilon that is proven by now."""
        return bisect(
            lambda epsilon: self.log_money_now(epsilon, PROVEN) >= -math.log(delta), 1.0, self.lowest
        )

    def lower(self, delta: float) -> float:
        """The largest risk that the true one is proven to exceed by now."""

        def refutes(mirrored: float) -> bool:
            return self.log_money_now(1 + self.lowest - mirrored, REFUTED) >= -math.log(delta)

        return 1 + self.lowest - bisect(refutes, 1.0, self.lowest)

    def log_money(self, epsilon: float, side: str) -> Array:
        """(examples,) the logarithm of the gamblers' mean money after each example."""
        means = self.means(epsilon)
        paths = log_factors(self.losses, means, self.lowest, side).cumsum(1)
        money = mean_money(paths, len(paths))
        return np.where(np.logical_or.accumulate(self.is_impossible(means, side)), np.inf, money)

    def log_money_now(self, epsilon: float, side: str) -> float:
        """The last of `log_money`, without those before it."""
        means = self.means(epsilon)
        if self.is_impossible(means, side).any():
            return np.inf
        paths = log_factors(self.losses, means, self.lowest, side).sum(1)
        return float(mean_money(paths, len(paths)))

    def is_impossible(self, means: Array, side: str) -> Array:
        """(examples,) in a finite population, whether the examples left can no longer break the claim, or save it."""
        return means >= 1 if side == PROVEN else means < self.lowest - EDGE

    def means(self, epsilon: float) -> Array:
        """(examples,) the bound on the mean of the examples left, before each is seen."""
        seen = np.arange(len(self.losses))
        if self.population is None:
            return np.full(len(seen), epsilon)
        before = self.losses.cumsum() - self.losses
        return np.asarray((self.population * epsilon - before) / (self.population - seen))


def log_factors(losses: Array, means: Array, lowest: float, side: str) -> Array:
    """(gamblers, examples) the logarithm of what each example makes of each gambler's money."""
    means = means.clip(lowest + EDGE, 1 - EDGE)
    if side == REFUTED:  # bet on the mirrored losses
        losses, means = 1 + lowest - losses, 1 + lowest - means
    with np.errstate(divide="ignore"):  # the largest bet may lose all
        return np.asarray(np.log1p(-bets(means, lowest, side) * (losses - means) / (1 - means)))


def bets(means: Array, lowest: float, side: str) -> Array:
    """(gamblers, examples) fractions of the largest safe bet."""
    if lowest < 0:
        return column(NET_BETS)
    if side == PROVEN:
        return column(PROVING_BETS)
    times = column(REFUTING_TIMES)
    return np.asarray(np.minimum((times - 1) * (1 - means) / means, LARGEST_REFUTING_BET))


def fewest_examples(epsilon: float, delta: float, lowest: float) -> int | None:
    """How many examples without any loss are proof enough; None above a billion."""
    return betting_examples([0.0], epsilon, delta, NET_BETS if lowest < 0 else PROVING_BETS)


def column(values: Sequence[float]) -> Array:
    return np.array(values)[:, None]


def mean_money(paths: Array, gamblers: int) -> Array:
    """The logarithm of the mean money of all gamblers, of which `paths` are those that have any left."""
    total = np.logaddexp.reduce(paths, axis=0) if len(paths) else -np.inf
    return np.asarray(total - np.log(gamblers))


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
            added = (reserve(starts) - reserve(starts + 1)) / len(self.bets)
            self.stakes = [stake + added for stake in self.stakes]
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

    If the mean is p, then for any other q the product of (q/p)^x ((1-q)/(1-p))^(1-x) over the losses x is a
    martingale that starts at 1. So is its average over q drawn from a Beta distribution, which ever reaches 1/delta
    with probability delta at most (Ville). The bounds enclose the p for which it has not. Losses between 0 and 1 are
    allowed too: the factor is a geometric mean, at most the arithmetic one x q/p + (1-x)(1-q)/(1-p), whose mean is 1.

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
