"""A certificate is tested for what it promises: over many draws of calibration examples, how often is it broken?"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from fakes import make_certificate
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from offramp.errors import BadOption, NoSafeThreshold
from offramp.guarantees import Certificate
from offramp.guarantees.bounds import BOUNDS, Bound
from offramp.measuring import Guarantee, calibrate
from offramp.policy import Policy
from offramp.trace import Trace

DRAWS = 300
DELTA = 0.1
CHANCE = binom.ppf(0.999, DRAWS, DELTA)
"""More broken promises than this are no bad luck."""

Make = Callable[..., Trace]


def synthetic(make_trace: Make) -> Trace:
    return make_trace(2000, exits=4, classes=3, seed=5)


def many_labels(make_trace: Make) -> Trace:
    """Three labels, which the exits know better and better."""
    rng = np.random.default_rng(6)
    labels = rng.integers(2, size=(2000, 3))
    noise = rng.normal(0, 1, (2000, 4, 3)).cumsum(1) / np.arange(1, 5)[:, None]
    logits = (2 * labels[:, None] - 1) * rng.gamma(2, 1, (2000, 1, 3)) + 2 * noise
    made = make_trace(2000, exits=4, problem="multi_label_classification", labels=labels, metrics=())
    return Trace(logits.astype(np.float32), made.layers, labels, made.lengths, made.ids, problem=made.problem)


def digits(_: Make) -> Trace:
    """Real handwriting and trained classifiers: exit k sees the first 2k rows of the picture."""
    images, labels = load_digits(return_X_y=True)
    seen = [images[:, : 16 * exit] / 16 for exit in range(1, 5)]
    trained = [LogisticRegression(max_iter=200).fit(part[:500], labels[:500]) for part in seen]
    logits = np.stack(
        [model.decision_function(part[500:]) for model, part in zip(trained, seen, strict=True)], 1
    )
    rest = np.arange(len(logits))
    return Trace(logits.astype(np.float32), (1, 2, 3, 4), labels[500:], np.ones(len(rest), int), rest)


def is_broken(policy: Policy, target: Guarantee, population: Trace) -> bool:
    """Whether the policy loses more of the population than it promised; by class, of any class."""
    many = population.problem == "multi_label_classification"
    given = policy.decide(population.logits, problem_type=population.problem).logits
    answers, full = (part > 0 if many else part.argmax(-1) for part in (given, population.logits[:, -1]))
    if target.risk == "changed":
        lost = (answers != full).any(-1) if many else answers != full
    else:
        lost = (full == population.labels) & (answers != population.labels)
    if target.risk == "accuracy_drop":
        lost = (full == population.labels) * 1.0 - (answers == population.labels)
    if not isinstance(target.epsilon, dict):
        return bool(lost.mean() > target.epsilon)
    belongs = full if target.risk == "changed" else population.labels
    return any(lost[belongs == int(name)].mean() > epsilon for name, epsilon in target.epsilon.items())


def promises(population: Trace, rule: str | list[str], target: Guarantee, examples: int) -> Iterator[bool]:
    """Whether a promise is broken, for each of DRAWS calibrations on examples from the population that certify."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        with suppress(NoSafeThreshold):
            policy = calibrate(population[rng.integers(len(population), size=examples)], rule, target).policy
            yield is_broken(policy, target, population)


CASES: dict[str, Any] = {
    "changed predictions": (synthetic, "confidence", Guarantee(0.1, DELTA)),
    "a rule that counts": (synthetic, "patience", Guarantee(0.11, DELTA)),
    "right answers lost": (synthetic, "entropy", Guarantee(0.1, DELTA, risk="accuracy")),
    "accuracy, net": (synthetic, "entropy", Guarantee(0.06, DELTA, risk="accuracy_drop")),
    "accuracy of many labels, net": (
        many_labels,
        "confidence",
        Guarantee(0.06, DELTA, risk="accuracy_drop"),
    ),
    "each class": (synthetic, "entropy", Guarantee({"0": 0.2, "1": 0.1, "2": 0.2}, DELTA)),
    "right answers of each class": (
        synthetic,
        "margin",
        Guarantee({"0": 0.1, "1": 0.2, "2": 0.2}, DELTA, risk="accuracy"),
    ),
    "all of many labels": (many_labels, "confidence", Guarantee(0.2, DELTA)),
    "right ones of many labels": (many_labels, "confidence", Guarantee(0.08, DELTA, risk="accuracy")),
    "digits": (digits, "margin", Guarantee(0.1, DELTA)),
    "the best of three rules": (digits, ["margin", "entropy", "patience"], Guarantee(0.15, DELTA)),
}


@pytest.mark.parametrize("case", CASES)
def test_promises_are_broken_no_more_often_than_delta(case: str, make_trace: Make) -> None:
    source, rule, target = CASES[case]
    broken = [*promises(source(make_trace), rule, target, examples=200)]
    assert len(broken) > DRAWS / 2  # a calibration that always refuses would keep every promise
    assert sum(broken) <= CHANCE


@pytest.mark.parametrize("case", CASES)
def test_bounds_that_trust_what_they_see_break_their_promises(
    case: str, make_trace: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trusting(losses: Any, epsilon: float) -> float:
        return 0.0 if np.mean(losses) <= epsilon else 1.0

    for name, bound in BOUNDS.items():
        monkeypatch.setitem(BOUNDS, name, Bound(trusting, bound.examples_needed))
    source, rule, target = CASES[case]
    broken = promises(source(make_trace), rule, target, examples=200)
    assert any(count > CHANCE for count in accumulate(broken))


@pytest.mark.parametrize("risk", ["changed", "accuracy"])
@pytest.mark.parametrize("source", [synthetic, many_labels])
def test_too_few_examples_certify_nothing_even_without_a_single_error(
    source: Callable[[Make], Trace], risk: str, make_trace: Make
) -> None:
    made = promises(source(make_trace), "confidence", Guarantee(0.1, 0.05, risk=risk), examples=20)
    assert not [*made]  # it takes ln(0.05) / ln(0.9), which is 29


WORDS = [
    ("changed", {}, "at most 3% of predictions differ from full depth"),
    (
        "changed",
        {"reference": "X", "tolerance": 0.5},
        "at most 3% of predictions differ from X by more than 0.5",
    ),
    ("changed", {"epsilon": {"ham": 0.1, "spam": 0.01}}, "at most 10% (of ham), 1% (of spam) of predictions"),
    ("accuracy", {}, "at most 3% of examples lose a correct prediction"),
    ("label_accuracy", {}, "at most 3% of labels lose a correct prediction"),
    ("overlap", {"top_k": 5}, "at most 3% of the top 5 of full depth are missed on average"),
    ("ndcg", {"top_k": 10, "reference": "X"}, "nDCG@10 against X's order drops by at most 3% on average"),
]


@pytest.mark.parametrize(("risk", "fields", "words"), WORDS)
def test_the_words_of_a_certificate_are_those_of_its_loss(
    risk: str, fields: dict[str, Any], words: str
) -> None:
    proof = make_certificate(**{"risk": risk, "epsilon": 0.03, **fields})
    assert proof.summary.startswith(f"With 95% confidence, {words}")
    assert (
        "0.03" in proof.promise
        or "0.01 of examples get a prediction that differs from full depth, separately" in proof.promise
    )
    assert "{" not in proof.promise + proof.summary


def test_a_certificate_without_conditions_applies_to_no_policy() -> None:
    bare = make_certificate(conditions=None)
    assert Certificate.from_json(bare.to_json()) == bare
    assert "policy unknown (here: entropy:0.3)" in bare.mismatches("entropy:0.3", "abc", "fp32")


def test_only_rankings_have_a_top_k() -> None:
    assert (Guarantee(0.1).top_k, Guarantee(0.1, risk="ndcg").top_k) == (None, 10)
    with pytest.raises(BadOption, match="rankings only"):
        Guarantee(0.1, top_k=5)
    with pytest.raises(BadOption, match="1 or more"):
        Guarantee(0.1, risk="overlap", top_k=0)
