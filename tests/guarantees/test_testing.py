"""Fixed-sequence testing stops at the first failure, of any class."""

from collections.abc import Iterator

import numpy as np

from offramp.guarantees.testing import Part, first_failure, results_of

NONE, MANY = np.zeros(100), np.ones(100)
ALL = [Part(0.05, np.ones(100, bool))]


def test_what_follows_the_first_failure_is_never_proven() -> None:
    assert first_failure([NONE, NONE, MANY, NONE], ALL, "exact binomial", 0.05) == 2
    assert first_failure([MANY, NONE], ALL, "exact binomial", 0.05) == 0
    assert first_failure([NONE, NONE], ALL, "betting", 0.05) == 2


def test_what_follows_the_first_failure_is_not_even_computed() -> None:
    def sequence() -> Iterator[np.ndarray]:
        yield MANY
        raise AssertionError("computed")

    assert first_failure(sequence(), ALL, "exact binomial", 0.05) == 0


def test_every_class_has_to_pass() -> None:
    first = np.arange(100) < 60
    parts = [Part(0.05, first, "a"), Part(0.05, ~first, "b")]
    assert first_failure([NONE], parts, "exact binomial", 0.05) == 0  # 40 examples of b are too few
    assert [result.examples for result in results_of(NONE, parts, "exact binomial")] == [60, 40]
    assert first_failure([NONE], parts, "exact binomial", 0.2) == 1


def test_a_class_without_examples_proves_nothing() -> None:
    (result,) = results_of(NONE, [Part(0.5, np.zeros(100, bool), "a")], "betting")
    assert (result.risk, result.p_value) == (0.0, 1.0)
