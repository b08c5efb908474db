import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offramp.errors import BadOption, CannotLoad, NoSafeThreshold
from offramp.guarantees.attempts import Attempt, subject_of

SUBJECT = subject_of(np.arange(5, dtype=np.uint64), "a model")


def attempt(epsilon: float, folder: Path | None = None, **more: Any) -> Attempt:
    return Attempt(SUBJECT, {"epsilon": epsilon, **more}, 0.05, folder)


def make(attempt: Attempt) -> float:
    with attempt.paid() as spent:
        return spent


def test_each_further_attempt_on_the_same_texts_pays_for_those_before_it() -> None:
    assert [make(attempt(epsilon)) for epsilon in (0.01, 0.02, 0.03)] == pytest.approx([0, 0.05, 0.1])
    assert make(attempt(0.02)) == pytest.approx(0.05), "the same again is no further attempt"
    (line,) = attempt(0.04).describe()
    assert line.endswith("may be wrong with a probability of 0.15, so the confidence of this one is 80%")


def test_other_texts_or_another_model_are_another_subject_and_their_order_is_not() -> None:
    texts = np.array([7, 8, 8], np.uint64)
    assert subject_of(texts, "a") == subject_of(texts[::-1], "a")
    assert len({subject_of(texts, "a"), subject_of(texts[:2], "a"), subject_of(texts, "b")}) == 3


def test_the_twentieth_attempt_ends_in_a_reason() -> None:
    for number in range(19):
        make(attempt(number / 100))
    with pytest.raises(NoSafeThreshold, match=r"19 earlier attempts .* probability of 0.95.* on other texts"):
        make(attempt(0.5))


def test_an_attempt_that_proves_nothing_counts_and_a_mistake_does_not() -> None:
    with pytest.raises(NoSafeThreshold), attempt(0.01).paid():
        raise NoSafeThreshold("nothing is proven")
    with pytest.raises(BadOption), attempt(0.02).paid():
        raise BadOption("a wrong flag")
    assert make(attempt(0.03)) == 0.05


def test_a_folder_remembers_where_the_cache_does_not(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(attempt(0.01, tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "of another machine"))
    assert make(attempt(0.02, tmp_path)) == 0.05
    assert make(attempt(0.03)) == pytest.approx(0.1), "the cache learns what the folder knew"


def test_a_cache_that_cannot_be_written_is_a_warning(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    with pytest.warns(UserWarning, match="cannot be remembered .* set XDG_CACHE_HOME"):
        make(attempt(0.01, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert make(attempt(0.02, tmp_path)) == 0.05


@pytest.mark.parametrize("content", ["", "[]", '{"attempts": 3}', json.dumps({"attempts": ["x"]})])
def test_a_damaged_memory_is_named(content: str, cache: Path) -> None:
    make(attempt(0.01))
    (file,) = cache.rglob("*.json")
    file.write_text(content)
    with pytest.raises(CannotLoad, match=f"{SUBJECT}.json does not hold earlier attempts"):
        attempt(0.02).spent()
