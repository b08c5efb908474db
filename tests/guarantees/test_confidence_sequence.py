"""Bounds that may be checked after every example: correct values, and correct coverage."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import betaln
from scipy.stats import binom

from offramp.guarantees.confidence_sequence import bounds, is_above

RUNS = 300
STEPS = 2000
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
@given(examples=st.integers(1, 5000), share=st.floats(0, 1), mean=st.floats(0.001, 0.999))
def test_is_above_agrees_with_the_lower_bound(examples: int, share: float, mean: float) -> None:
    lost = round(share * examples)
    low, high = bounds(lost, examples, 0.05)
    assert 0 <= low <= lost / examples <= high <= 1
    if abs(low - mean) > 1e-9:
        assert is_above(mean, lost, examples, 0.05) == (low > mean)


def ever_above(mean: float, losses: list[float], delta: float) -> bool:
    lost = 0.0
    for examples, loss in enumerate(losses, 1):
        lost += loss
        if is_above(mean, lost, examples, delta):
            return True
    return False


@pytest.mark.parametrize("kind", ["0 or 1", "between"])
def test_checking_after_every_example_errs_no_more_often_than_delta(kind: str) -> None:
    draw, wrong = random.Random(0), 0
    for _ in range(RUNS):
        numbers = [draw.random() for _ in range(STEPS)]
        losses = [float(number < 0.05) if kind == "0 or 1" else 0.1 * number for number in numbers]
        wrong += ever_above(0.05, losses, DELTA)
    assert wrong <= binom.ppf(0.999, RUNS, DELTA)


def test_without_examples_the_bounds_are_trivial() -> None:
    assert bounds(0, 0, 0.05) == (0.0, 1.0)
    assert not is_above(0.5, 0, 0, 0.05)
