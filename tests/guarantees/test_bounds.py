"""p-values against exact sums and against numbers of the literature."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta

from offramp.guarantees.bounds import BOUNDS, betting, betting_examples, binomial, binomial_examples


def exact_tail(errors: int, examples: int, epsilon: Fraction) -> float:
    """P(at most so many errors), by summing fractions."""
    each = (math.comb(examples, k) * epsilon**k * (1 - epsilon) ** (examples - k) for k in range(errors + 1))
    return float(sum(each))


@pytest.mark.parametrize(("errors", "examples"), [(0, 59), (3, 40), (7, 100), (100, 100)])
def test_the_binomial_tail_is_exact(errors: int, examples: int) -> None:
    expected = exact_tail(errors, examples, Fraction(1, 20))
    assert binomial([1] * errors + [0] * (examples - errors), 0.05) == pytest.approx(expected, rel=1e-9)


def test_a_risk_above_epsilon_proves_nothing() -> None:
    losses = [1] * 20 + [0] * 80
    assert binomial(losses, 0.1) > 0.5
    assert betting(losses, 0.1) == 1.0


@pytest.mark.parametrize(("epsilon", "examples"), [(0.05, 59), (0.02, 149), (0.01, 299), (0.005, 598)])
def test_examples_needed_without_errors_are_those_of_the_logarithm(epsilon: float, examples: int) -> None:
    assert (
        binomial_examples([0], epsilon, 0.05) == examples == math.ceil(math.log(0.05) / math.log(1 - epsilon))
    )


def test_examples_needed_are_enough_and_one_less_is_not() -> None:
    needed = binomial_examples([0.03], 0.05, 0.1)
    assert needed is not None

    def p_value(examples: int) -> float:
        return binomial(np.arange(examples) < math.ceil(0.03 * examples), 0.05)

    assert p_value(needed) <= 0.1 < p_value(needed - 1)


def test_more_than_a_billion_examples_are_never_required() -> None:
    assert binomial_examples([0], 1e-12, 0.05) is None
    assert binomial_examples([0.1 - 1e-12], 0.1, 0.05) is None


def test_no_number_of_examples_proves_less_than_the_truth() -> None:
    assert binomial_examples([0.05], 0.05, 0.1) is None


@pytest.mark.parametrize("spread", [1, 10])
def test_betting_is_valid_whatever_the_spread_of_losses(spread: int) -> None:
    """Losses of 0 or 1, and of tenths, whose mean is exactly what is to be refuted."""
    losses = np.random.default_rng(0).binomial(spread, 0.05, (2000, 150)) / spread
    p_values = np.array([betting(each, 0.05) for each in losses])
    for delta in (0.01, 0.05, 0.2):
        assert (p_values <= delta).mean() <= delta


def test_betting_proves_more_if_losses_vary_little() -> None:
    varied = np.arange(200) < 6
    assert betting(np.full(200, varied.mean()), 0.05) < 0.05 < betting(varied, 0.05)


@pytest.mark.parametrize("losses", [np.zeros(100), np.arange(400) < 4])
def test_the_exact_bound_is_the_stronger_for_losses_of_0_or_1(losses: np.ndarray) -> None:
    assert binomial(losses, 0.05) < betting(losses, 0.05)


def test_betting_says_how_many_examples_it_needs() -> None:
    losses = [0.0, 0.05]
    needed = betting_examples(losses, 0.05, 0.05)
    assert needed is not None
    assert betting(np.resize(losses, needed + needed % 2), 0.05) <= 0.05
    assert betting(np.resize(losses, needed - 2 - needed % 2), 0.05) > 0.05
    assert betting_examples([0.1], 0.05, 0.05) is None


@pytest.mark.parametrize("name", BOUNDS)
def test_upper_and_lower_bounds_are_where_the_test_turns(name: str) -> None:
    bound, losses = BOUNDS[name], np.arange(400) < 12
    upper, lower = bound.upper(losses, 0.05), bound.lower(losses, 0.05)
    assert lower < 0.03 < upper
    assert bound.p_value(losses, upper + 1e-6) <= 0.05 < bound.p_value(losses, upper - 1e-6)
    if name == "exact binomial":
        assert (lower, upper) == pytest.approx((beta.ppf(0.05, 12, 389), beta.ppf(0.95, 13, 388)))


def test_losses_that_cancel_are_proven_to_cost_little() -> None:
    losses = np.array([1.0] * 100 + [-1.0] * 100 + [0.0] * 9800)
    assert BOUNDS["paired betting"].p_value(losses, 0.01) < 0.01
    assert BOUNDS["paired betting"].upper(losses, 0.05) < 0.005
    assert BOUNDS["paired betting"].lower(losses, 0.05) == pytest.approx(
        -BOUNDS["paired betting"].upper(losses, 0.05)
    )
