"""Bounds that may be checked after every example: correct values, and correct coverage."""

import math
import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import betaln
from scipy.stats import binom

from offramp.guarantees.sequential import INTERVAL, MOST_MONEY, ChangeTest, bounds, evidence

RUNS = 200
STEPS = 800
DELTA = 0.1


@pytest.mark.parametrize(
    ("examples", "upper"),
    [
        (1, 1 - 0.05 * 1 / 2),  # B(1/2, 3/2) is half of B(1/2, 1/2)
        (2, 1 - math.sqrt(0.05 * 3 / 8)),
        (3, 1 - math.cbrt(0.05 * 5 / 16)),
    ],
)
def test_without_a_loss_the_bounds_are_those_computed_by_hand(examples: int, upper: float) -> None:
    assert bounds(0, examples, 0.05) == (0.0, pytest.approx(upper))
    assert bounds(examples, examples, 0.05) == (pytest.approx(1 - upper), 1.0)


@pytest.mark.parametrize(("lost", "examples"), [(1, 3), (3, 100), (12.5, 40), (900, 100_000)])
def test_bounds_are_where_the_mixture_reaches_one_over_delta(lost: float, examples: int) -> None:
    def excess(mean: float) -> float:
        mixture = betaln(0.5 + lost, 0.5 + examples - lost) - betaln(0.5, 0.5)
        likelihood = lost * math.log(mean) + (examples - lost) * math.log(1 - mean)
        return float(mixture - likelihood - math.log(1 / 0.05))

    low, high = bounds(lost, examples, 0.05)
    assert low == pytest.approx(brentq(excess, 1e-12, lost / examples), rel=1e-6)
    assert high == pytest.approx(brentq(excess, lost / examples, 1 - 1e-12), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(examples=st.integers(1, 5000), share=st.floats(0, 1))
def test_bounds_enclose_what_was_observed(examples: int, share: float) -> None:
    lost = round(share * examples)
    low, high = bounds(lost, examples, 0.05)
    assert 0 <= low <= lost / examples <= high <= 1


def test_without_examples_the_bounds_are_trivial() -> None:
    assert bounds(0, 0, 0.05) == (0.0, 1.0)


def losses(kind: str, seed: int, number: int = STEPS, mean: float = 0.05) -> list[float]:
    draw = random.Random(seed)
    if kind == "0 or 1":
        return [float(draw.random() < mean) for _ in range(number)]
    return [2 * mean * draw.random() for _ in range(number)]


@pytest.mark.parametrize("kind", ["0 or 1", "between"])
def test_the_lower_bound_is_ever_too_high_no_more_often_than_delta(kind: str) -> None:
    wrong = 0
    for seed in range(RUNS):
        lost = np.cumsum(losses(kind, seed))
        # where the bound is above the mean, the evidence against the mean is large and it was exceeded
        wrong += any(
            lost[n - 1] > 0.05 * n and evidence(float(lost[n - 1]), n, 0.05) >= -math.log(DELTA)
            for n in range(1, STEPS, 5)
        )
    assert wrong <= binom.ppf(0.999, RUNS, DELTA)


def money_of(values: Iterable[float], bound: float = 0.05, above: bool = True) -> Iterator[float]:
    test = ChangeTest(bound, above)
    for loss in values:
        test.add(loss)
        yield test.money


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("kind", ["0 or 1", "between"])
def test_a_mean_that_stays_at_the_bound_is_ever_called_beyond_it_no_more_often_than_delta(
    kind: str, above: bool
) -> None:
    wrong = sum(max(money_of(losses(kind, seed), above=above)) >= 1 / DELTA for seed in range(RUNS))
    assert wrong <= binom.ppf(0.999, RUNS, DELTA)


@settings(max_examples=100, deadline=None)
@given(
    past=st.lists(st.sampled_from([0.0, 0.3, 1.0]), max_size=2 * INTERVAL + 1),
    bound=st.floats(0.001, 0.999),
    above=st.booleans(),
)
def test_at_the_bound_the_next_loss_changes_no_money_on_average(
    past: list[float], bound: float, above: bool
) -> None:
    """With probability `bound` it is 1, else 0; so the money is a martingale whatever came before."""
    before = [1.0, *money_of(past, bound, above)][-1]
    lost, kept = ([*money_of([*past, loss], bound, above)][-1] for loss in (1.0, 0.0))
    average = bound * lost + (1 - bound) * kept
    if max(lost, kept) < MOST_MONEY:
        assert average == pytest.approx(before)
    assert average <= before * (1 + 1e-9)  # what is beyond the most that counts is lost
    assert min(lost, kept) >= 0


def test_a_change_after_a_long_past_is_seen_nearly_as_soon_as_one_at_the_start() -> None:
    """Without new starts, the past of 10,000 examples would have to be outweighed: 5,000 at least."""
    past = losses("0 or 1", 1, 10_000, 0.01)
    found = [
        next(
            n for n, money in enumerate(money_of([*before, *losses("0 or 1", 2, 5000, 0.15)])) if money >= 20
        )
        - len(before)
        for before in ([], past)
    ]
    assert 0 < found[0] < found[1] < 200


def test_a_mean_below_the_bound_is_proven_after_a_bad_past() -> None:
    values = [*losses("0 or 1", 3, 2000, 0.2), *losses("0 or 1", 4, 2000, 0.01)]
    [*money] = money_of(values, above=False)
    assert max(money[:2000]) < 20
    assert max(money[2000:3000]) >= 20


def test_the_money_stays_a_number() -> None:
    for above in (True, False):
        for values in ([1.0] * 3000, [0.0] * 3000, [0.0, 1.0] * 1500):
            assert all(map(math.isfinite, money_of(values, above=above)))
