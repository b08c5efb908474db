"""Fixed-sequence testing stops at the first failure, of any class."""

from collections.abc import Iterable, Iterator

import numpy as np

from offramp.guarantees.testing import Part, first_failure, results_of

NONE, MANY = np.zeros(100), np.ones(100)
ALL = [Part("changed", 0.05, np.ones(100, bool))]


def passes(sequence: Iterable[np.ndarray], parts: list[Part] = ALL, delta: float = 0.05) -> int:
    return first_failure((results_of({"changed": losses}, parts) for losses in sequence), delta)


def test_what_follows_the_first_failure_is_never_proven() -> None:
    assert passes([NONE, NONE, MANY, NONE]) == 2
    assert passes([MANY, NONE]) == 0
    assert passes([NONE, NONE]) == 2


def test_what_follows_the_first_failure_is_not_even_computed() -> None:
    def sequence() -> Iterator[np.ndarray]:
        yield MANY
        raise AssertionError("computed")

    assert passes(sequence()) == 0


def test_every_class_has_to_pass() -> None:
    first = np.arange(100) < 60
    parts = [Part("changed", 0.05, first, "a"), Part("changed", 0.05, ~first, "b")]
    assert passes([NONE], parts) == 0  # 40 examples of b are too few
    assert [result.examples for result in results_of({"changed": NONE}, parts)] == [60, 40]
    assert passes([NONE], parts, 0.2) == 1


def test_every_risk_has_to_pass_by_its_own_bound() -> None:
    every = np.ones(100, bool)
    parts = [Part("changed", 0.05, every), Part("label_accuracy", 0.05, every)]
    both = [{"changed": NONE, "label_accuracy": losses} for losses in (NONE, NONE + 0.04, MANY)]
    assert first_failure((results_of(losses, parts) for losses in both), 0.05) == 1
    assert [result.bound for result in results_of(both[0], parts)] == ["exact binomial", "betting"]


def test_a_class_without_examples_proves_nothing() -> None:
    (result,) = results_of({"changed": NONE}, [Part("changed", 0.5, np.zeros(100, bool), "a")])
    assert (result.observed_risk, result.p_value) == (0.0, 1.0)
