"""A certificate is tested for what it promises: over many draws of calibration examples, how often is it broken?"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from offramp.calibration import Guarantee, calibrate, guarantee
from offramp.errors import NoSafeThreshold
from offramp.trace import Trace

DRAWS = 500
DELTA = 0.1


def synthetic(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(2000, exits=4, classes=3, seed=5)


def digits(_: Callable[..., Trace]) -> Trace:
    """Real handwriting and trained classifiers: exit k sees the first 2k rows of the picture."""
    images, labels = load_digits(return_X_y=True)
    seen = [images[:, : 16 * exit] / 16 for exit in range(1, 5)]
    trained = [LogisticRegression(max_iter=200).fit(part[:500], labels[:500]) for part in seen]
    logits = np.stack(
        [model.decision_function(part[500:]) for model, part in zip(trained, seen, strict=True)], 1
    )
    rest = np.arange(len(logits))
    return Trace(logits.astype(np.float32), (1, 2, 3, 4), labels[500:], np.ones(len(rest), int), rest)


def broken_promises(
    population: Trace, rule: str | list[str], target: Guarantee, examples: int
) -> tuple[int, int]:
    """Of DRAWS calibrations on examples drawn from the population: how many certify, how many of them wrongly."""
    rng = np.random.default_rng(0)
    full = population.logits[:, -1].argmax(-1)
    promised = sum(target.epsilon.values()) if isinstance(target.epsilon, dict) else target.epsilon
    made = broken = 0
    for _ in range(DRAWS):
        try:
            policy = calibrate(population[rng.integers(len(population), size=examples)], rule, target)
        except NoSafeThreshold:
            continue
        answers = policy.decide(population.logits).answers.argmax(-1)
        if target.of == "disagreement":
            risk = np.mean(answers != full)
        else:
            risk = np.mean(full == population.labels) - np.mean(answers == population.labels)
        made += 1
        broken += risk > promised
    return made, broken


CASES = [
    (synthetic, "confidence", Guarantee(0.1, DELTA)),
    (synthetic, "patience", Guarantee(0.25, DELTA)),
    (synthetic, "entropy", Guarantee(0.1, DELTA, of="accuracy")),
    (synthetic, "entropy", Guarantee({"0": 0.06, "1": 0.04, "2": 0.06}, DELTA)),
    (digits, "margin", Guarantee(0.1, DELTA)),
    (digits, ["margin", "entropy", "patience"], Guarantee(0.15, DELTA)),
]


@pytest.mark.parametrize(
    ("source", "rule", "target"), CASES, ids=lambda x: getattr(x, "__name__", str(x))[:40]
)
def test_promises_are_broken_no_more_often_than_delta(
    source: Callable[..., Trace], rule: str | list[str], target: Guarantee, make_trace: Callable[..., Trace]
) -> None:
    made, broken = broken_promises(source(make_trace), rule, target, examples=200)
    assert made > DRAWS / 2  # a calibration that always refuses would keep every promise
    assert broken <= binom.ppf(0.999, DRAWS, DELTA)


def test_a_bound_that_trusts_what_it_sees_breaks_its_promises(
    make_trace: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        guarantee, "binomial", lambda risk, examples, epsilon: np.where(risk <= epsilon, 0.0, 1.0)
    )
    _, broken = broken_promises(synthetic(make_trace), "confidence", Guarantee(0.1, DELTA), examples=200)
    assert broken > binom.ppf(0.999, DRAWS, DELTA)
