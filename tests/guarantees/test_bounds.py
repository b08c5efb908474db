"""p-values against exact sums and against numbers of the literature."""

import math
from fractions import Fraction

import numpy as np
import pytest

from offramp.guarantees.bounds import (
    betting,
    binomial,
    examples_needed,
    examples_to_bet_on,
    hoeffding_bentkus,
)


def exact_tail(errors: int, examples: int, epsilon: Fraction) -> float:
    """P(at most so many errors), by summing fractions."""
    each = (math.comb(examples, k) * epsilon**k * (1 - epsilon) ** (examples - k) for k in range(errors + 1))
    return float(sum(each))


@pytest.mark.parametrize(("errors", "examples"), [(0, 59), (3, 40), (7, 100), (100, 100)])
def test_the_binomial_tail_is_exact(errors: int, examples: int) -> None:
    expected = exact_tail(errors, examples, Fraction(1, 20))
    assert binomial(errors / examples, examples, 0.05) == pytest.approx(expected, rel=1e-9)


def test_counting_errors_survives_float_division() -> None:
    for errors in range(0, 300, 7):
        expected = exact_tail(errors, 299, Fraction(1, 2))
        assert binomial(errors / 299, 299, 0.5) == pytest.approx(expected, rel=1e-9)


def test_hoeffding_bentkus_is_the_smaller_of_both_bounds() -> None:
    risk, examples, epsilon = 0.05, 1000, 0.1
    hoeffding = math.exp(
        -examples * (risk * math.log(risk / epsilon) + (1 - risk) * math.log((1 - risk) / (1 - epsilon)))
    )
    bentkus = math.e * exact_tail(50, examples, Fraction(1, 10))
    assert hoeffding_bentkus(risk, examples, epsilon) == pytest.approx(min(hoeffding, bentkus), rel=1e-9)


def test_hoeffding_bentkus_is_valid_for_fractional_losses() -> None:
    rng = np.random.default_rng(0)
    losses = rng.choice([0.0, 1 / 3, 2 / 3, 1.0], p=[0.7, 0.15, 0.1, 0.05], size=(4000, 200))
    truth = 0.15 / 3 + 0.2 / 3 + 0.05
    p_values = hoeffding_bentkus(losses.mean(1), 200, truth)
    assert np.mean(p_values <= 0.1) <= 0.1
    assert p_values.min() < 0.1


@pytest.mark.parametrize("hair", [-1e-15, -1e-17, 1e-17])
def test_a_hair_of_float_noise_proves_nothing(hair: float) -> None:
    assert hoeffding_bentkus(hair, 20, 0.1) == pytest.approx(hoeffding_bentkus(0.0, 20, 0.1), rel=1e-9)
    assert hoeffding_bentkus(0.0, 20, 0.1) == pytest.approx(0.9**20)
    assert binomial(hair, 20, 0.1) == pytest.approx(0.9**20)


def test_a_risk_above_epsilon_proves_nothing() -> None:
    assert binomial(0.2, 100, 0.1) > 0.5
    assert hoeffding_bentkus(0.2, 100, 0.1) == 1.0


@pytest.mark.parametrize(("epsilon", "examples"), [(0.05, 59), (0.02, 149), (0.01, 299), (0.005, 598)])
def test_examples_needed_without_errors_are_those_of_the_logarithm(epsilon: float, examples: int) -> None:
    assert examples_needed(epsilon, 0.05) == examples == math.ceil(math.log(0.05) / math.log(1 - epsilon))


def test_examples_needed_are_enough_and_one_less_is_not() -> None:
    needed = examples_needed(0.05, 0.1, risk=0.03)
    assert needed is not None
    assert binomial(math.ceil(0.03 * needed) / needed, needed, 0.05) <= 0.1
    assert binomial(math.ceil(0.03 * (needed - 1)) / (needed - 1), needed - 1, 0.05) > 0.1


def test_examples_needed_are_those_of_the_bound() -> None:
    needed = examples_needed(0.05, 0.1, 0.03, hoeffding_bentkus)
    assert needed is not None
    assert hoeffding_bentkus(math.ceil(0.03 * needed) / needed, needed, 0.05) <= 0.1
    assert needed > examples_needed(0.05, 0.1, 0.03)


def test_more_than_a_billion_examples_are_never_required() -> None:
    assert examples_needed(1e-12, 0.05) is None
    assert examples_needed(0.1, 0.05, risk=0.1 - 1e-12) is None


def test_no_number_of_examples_proves_less_than_the_truth() -> None:
    assert examples_needed(0.05, 0.1, risk=0.05) is None


@pytest.mark.parametrize("spread", [1, 10])
def test_betting_is_valid_whatever_the_spread_of_losses(spread: int) -> None:
    """Losses of 0 or 1, and of tenths, whose mean is exactly what is to be refuted."""
    losses = np.random.default_rng(0).binomial(spread, 0.05, (2000, 150)) / spread
    p_values = np.array([betting(each, 0.05) for each in losses])
    for delta in (0.01, 0.05, 0.2):
        assert (p_values <= delta).mean() <= delta


def test_betting_proves_more_than_the_mean_alone_if_losses_vary_little() -> None:
    losses = np.random.default_rng(0).binomial(10, 0.028, 300) / 10
    assert betting(losses, 0.05) < 0.05 < hoeffding_bentkus(losses.mean(), 300, 0.05)


def test_betting_says_how_many_examples_it_needs() -> None:
    losses = [0.0, 0.05]
    needed = examples_to_bet_on(losses, 0.05, 0.05)
    assert needed is not None
    assert betting(np.resize(losses, needed + needed % 2), 0.05) <= 0.05
    assert betting(np.resize(losses, needed - 2 - needed % 2), 0.05) > 0.05
    assert examples_to_bet_on([0.1], 0.05, 0.05) is None
