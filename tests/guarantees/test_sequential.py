"""A test that may stop at any time: how often it is wrong, how many examples it takes, and without replacement."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from offramp.guarantees.sequential import SequentialTest, fewest_examples

STREAMS, DELTA = 400, 0.05
CHANCE = binom.ppf(0.999, STREAMS, DELTA)


@cache
def verdicts(
    rate: float, examples: int, epsilon: float = 0.02, population: int | None = None
) -> list[SequentialTest]:
    """Tests of streams of losses; of a finite population if there is one."""
    rng, tests = np.random.default_rng(0), []
    for _ in range(STREAMS):
        losses = rng.random(examples) < rate
        if population is not None:
            losses = rng.permutation(np.arange(population) < round(rate * population))
        test = SequentialTest(epsilon, DELTA, population=population)
        test.add(losses.astype(float))
        tests.append(test)
    return tests


def count(tests: list[SequentialTest], verdict: str | None) -> int:
    return sum(test.verdict == verdict for test in tests)


def test_at_the_edge_a_claim_is_falsely_proven_no_more_often_than_delta() -> None:
    wrong = count(verdicts(0.02, 4000), "proven")
    assert 0.2 * DELTA * STREAMS < wrong <= CHANCE  # a test that never proves would keep every promise


def test_a_true_claim_is_refuted_no_more_often_than_delta() -> None:
    assert count(verdicts(0.02, 4000), "refuted") <= CHANCE


@pytest.mark.parametrize(("rate", "examples"), [(0.0, 179), (0.005, 430), (0.01, 1250)])
def test_the_lower_the_rate_the_fewer_examples_prove_it(rate: float, examples: int) -> None:
    tests = verdicts(rate, 8000)
    assert count(tests, "proven") > 0.99 * STREAMS
    assert np.mean([len(test.losses) for test in tests]) <= examples


def test_a_false_claim_is_refuted_soon() -> None:
    tests = verdicts(0.04, 4000)
    assert count(tests, "refuted") > 0.99 * STREAMS
    assert np.median([len(test.losses) for test in tests]) < 500


@pytest.mark.parametrize("errors", [41, 60])
def test_a_false_claim_about_a_finite_population_is_rarely_proven(errors: int) -> None:
    tests = verdicts(errors / 2000, 2000, population=2000)
    assert count(tests, "proven") <= CHANCE
    assert count(tests, None) == 0  # at the end, everything is known


@pytest.mark.parametrize("errors", [40, 10])
def test_a_true_claim_about_a_finite_population_is_rarely_refuted(errors: int) -> None:
    tests = verdicts(errors / 2000, 2000, population=2000)
    assert count(tests, "refuted") <= CHANCE
    assert count(tests, None) == 0


@pytest.mark.parametrize("population", [None, 600])
@pytest.mark.parametrize("lowest", [0.0, -1.0])
def test_bounds_hold_wherever_it_stops(population: int | None, lowest: float) -> None:
    rng, missed = np.random.default_rng(1), 0
    people = np.where(rng.random(600) < 0.05, 1.0, np.where(rng.random(600) < 0.03, lowest, 0.0))
    for _ in range(STREAMS):
        test = SequentialTest(0.1, DELTA, lowest, population)
        test.add(rng.permutation(people) if population else rng.choice(people, 600))
        low, high = test.lower(DELTA / 2), test.upper(DELTA / 2)
        assert lowest <= low <= test.losses.mean() <= high <= 1
        missed += not low <= people.mean() <= high
    assert missed <= CHANCE


def test_losses_in_parts_give_the_verdict_of_all_at_once() -> None:
    losses = (np.random.default_rng(3).random(3000) < 0.005).astype(float)
    once, parts = SequentialTest(0.02, DELTA), SequentialTest(0.02, DELTA)
    once.add(losses)
    for start in range(0, 3000, 7):
        parts.add(losses[start : start + 7])
    assert once.verdict == parts.verdict == "proven"
    assert len(once.losses) == len(parts.losses)


def test_fewest_examples_without_a_loss_are_enough() -> None:
    needed = fewest_examples(0.02, DELTA, 0.0)
    assert needed == 179
    assert SequentialTest(0.02, DELTA).add(np.zeros(needed)) == "proven"
    assert SequentialTest(0.02, DELTA).add(np.zeros(needed - 1)) is None


def test_it_gives_up_if_the_examples_left_cannot_prove_the_claim() -> None:
    test = SequentialTest(0.02, DELTA)
    test.add(np.arange(200) % 60 == 0)
    assert test.give_up(left=10_000) is None
    assert test.give_up(left=10) == "hopeless"
