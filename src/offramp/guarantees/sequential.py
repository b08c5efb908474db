"""A test of "the risk is at most epsilon" that may stop after any example.

*Reference*: Waudby-Smith and Ramdas 2024, arXiv:2010.09686; without replacement: the same, 2020, arXiv:2006.04347.

Gamblers bet as in `offramp.guarantees.bounds.betting`, some against a risk of epsilon or more, others against a risk
of epsilon or less. If the claim they bet against is true, their mean money ever reaches 1 / delta with probability
delta at most (Ville), whenever one looks. Examples must come in random order.

In a finite population that is drawn without replacement, epsilon is replaced by the mean that the examples left must
have if the mean of all is epsilon.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from offramp.guarantees.bounds import NET_BETS, betting_examples, bisect
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

    def upper(self, delta: float) -> float:
        """The smallest epsilon that is proven by now."""
        return bisect(lambda epsilon: self.log_money(epsilon, PROVEN)[-1] >= -np.log(delta), self.lowest)

    def lower(self, delta: float) -> float:
        """The largest risk that the true one is proven to exceed by now."""

        def refutes(mirrored: float) -> bool:
            return bool(self.log_money(1 + self.lowest - mirrored, REFUTED)[-1] >= -np.log(delta))

        return 1 + self.lowest - bisect(refutes, self.lowest)

    def log_money(self, epsilon: float, side: str) -> Array:
        """(examples,) the logarithm of the gamblers' mean money after each example."""
        means = self.means(epsilon)
        paths = log_factors(self.losses, means, self.lowest, side).cumsum(1)
        money = mean_money(paths, len(paths))
        # in a finite population, the examples left may no longer be able to break the claim, or to save it
        impossible = means >= 1 if side == PROVEN else means < self.lowest - EDGE
        return np.where(np.logical_or.accumulate(impossible), np.inf, money)

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
