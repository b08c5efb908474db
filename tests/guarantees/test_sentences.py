"""The sentence of every risk is checked against the population, by a second implementation of what the words say.

Logs are drawn from a population, a policy is calibrated on each, and the claim that its certificate prints is judged
on the whole population. It may be false in at most delta of all draws.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from offramp.errors import NoSafeThreshold
from offramp.guarantees import LOSSES, Guarantee
from offramp.guarantees.bounds import BOUNDS, Bound
from offramp.measuring import calibrate
from offramp.numerics import softmax
from offramp.policy import Policy
from offramp.trace import Trace

DRAWS, DELTA, ROWS = 60, 0.2, 350
CHANCE = binom.ppf(0.999, DRAWS, DELTA)
"""More false claims than this are no bad luck."""
TEXTS, EXITS = 2500, 4
LANGUAGES = ("de", "en")

Rng = np.random.Generator


@dataclass(frozen=True)
class Answers:
    """What a user sees of each text of the population, before and after; (texts, labels)."""

    before: np.ndarray
    after: np.ndarray
    truth: np.ndarray
    scores_before: np.ndarray
    scores_after: np.ndarray


def share(which: np.ndarray, among: np.ndarray) -> float:
    return float(which[among].mean()) if among.any() else 0.0


SAYS: dict[str, Callable[[Answers, np.ndarray], float]] = {
    # at most ... of predictions differ
    "changed": lambda a, among: share((a.before != a.after).any(-1), among),
    # at most ... of examples lose a correct prediction
    "accuracy": lambda a, among: share((a.before == a.truth).all(-1) & (a.after != a.truth).any(-1), among),
    # at most ... of labels lose a correct prediction
    "label_accuracy": lambda a, among: float(
        ((a.before == a.truth) & (a.after != a.truth))[among].sum() / (among.sum() * a.truth.shape[1])
    ),
    # accuracy falls by at most ...
    "accuracy_drop": lambda a, among: float(
        (a.before == a.truth)[among].mean() - (a.after == a.truth)[among].mean()
    ),
    # of examples that it says yes to, lose a yes
    "missed": lambda a, among: share(
        ((a.before == 1) & (a.after == 0)).any(-1), among & (a.before == 1).any(-1)
    ),
    # of examples that it says no to, get a yes instead
    "false_alarm": lambda a, among: share(
        ((a.before == 0) & (a.after == 1)).any(-1), among & (a.before == 0).any(-1)
    ),
    "missed_of_all": lambda a, among: share(((a.before == 1) & (a.after == 0)).any(-1), among),
    "false_alarm_of_all": lambda a, among: share(((a.before == 0) & (a.after == 1)).any(-1), among),
    # a score differs by more than 0.2
    "score": lambda a, among: share((np.abs(a.scores_after - a.scores_before) > 0.2).any(-1), among),
}


@cache
def population(labels: int = 0) -> Trace:
    """Exits that come closer to the last one, in German less so; two classes, or several labels."""
    rng = np.random.default_rng(3)
    width = labels or 1
    truth = rng.normal(0, 2, (TEXTS, 1, width)) + 0.5
    german = rng.random(TEXTS) < 0.4
    spread = np.linspace(1.6, 0.0, EXITS)[:, None] * (1 + 0.5 * german[:, None, None])
    leads = truth + spread * rng.normal(0, 1, (TEXTS, EXITS, width))
    right = (rng.random((TEXTS, width)) < 1 / (1 + np.exp(-truth[:, 0]))).astype(int)
    logits = leads if labels else np.concatenate([-leads / 2, leads / 2], -1)
    return Trace(
        logits.astype(np.float32),
        tuple(range(1, EXITS + 1)),
        right if labels else right[:, 0],
        lengths=np.ones(TEXTS),
        ids=np.arange(TEXTS),
        texts=np.arange(TEXTS, dtype=np.uint64),
        problem="multi_label_classification" if labels else "single_label_classification",
        label_names=("a", "b", "c")[:labels] if labels else ("ham", "spam"),
    ).categorized("language", np.where(german, *LANGUAGES).tolist())


def answers(trace: Trace, policy: Policy) -> tuple[Answers, np.ndarray]:
    """From the logits alone, and the exit of each text."""
    decided = trace.decided()
    decision = policy.decide(decided.logits, layers=decided.layers, problem_type=decided.problem)
    rows = np.arange(len(trace))
    logits = trace.logits[:, -1], trace.logits[rows, decision.exits]
    if trace.problem == "multi_label_classification":
        scores = [1 / (1 + np.exp(-each.astype(float))) for each in logits]
        labels, truth = [(each > 0.5).astype(int) for each in scores], trace.labels
    else:
        scores = [softmax(each) for each in logits]
        labels, truth = [each.argmax(-1)[:, None] for each in scores], np.asarray(trace.labels)[:, None]
    if trace.decide == "spam>=0.3":
        labels = [(each[:, 1:] >= 0.3).astype(int) for each in scores]
    assert truth is not None
    return Answers(labels[0], labels[1], np.asarray(truth), scores[0], scores[1]), decision.exits


def members(trace: Trace, by: str, group: str, seen: Answers, exits: np.ndarray, risk: str) -> np.ndarray:
    """The texts that a sentence about a group means."""
    if by == "exit":
        return exits == trace.layers.index(int(group.removeprefix("layer ")))
    if by == "language":
        return np.array(trace.category_names)[trace.categories] == group
    if by == "class":
        classes = seen.truth if LOSSES[risk].needs_labels else seen.before
        named = {"ham": 0, "spam": 1, "not spam": 0}
        return classes[:, 0] == named[group]
    return np.ones(len(trace), bool)


def all_new(rng: Rng) -> np.ndarray:
    return rng.choice(TEXTS, ROWS, replace=False)


def in_bursts(rng: Rng) -> np.ndarray:
    """A tenth of the texts come about ten times, in this log only."""
    texts = rng.choice(TEXTS, 300, replace=False)
    return np.repeat(texts, np.where(np.arange(300) < 30, 10, 1))


MULTI, SPAM = {"labels": 3}, {"decide": "spam>=0.3"}
CASES: dict[str, tuple[Guarantee, dict[str, Any]]] = {
    "changed": (Guarantee(0.08, DELTA), {}),
    "changed, several labels": (Guarantee(0.15, DELTA), MULTI),
    "changed decisions": (Guarantee(0.08, DELTA), SPAM),
    "accuracy": (Guarantee(0.05, DELTA, "accuracy"), {}),
    "label_accuracy": (Guarantee(0.05, DELTA, "accuracy"), MULTI),
    "accuracy_drop": (Guarantee(0.04, DELTA, "accuracy_drop"), {}),
    "accuracy_drop, several labels": (Guarantee(0.04, DELTA, "accuracy_drop"), MULTI),
    "missed": (Guarantee(0.06, DELTA, "missed"), SPAM),
    "missed, several labels": (Guarantee(0.12, DELTA, "missed"), MULTI),
    "false_alarm": (Guarantee(0.08, DELTA, "false_alarm"), SPAM),
    "missed_of_all": (Guarantee(0.05, DELTA, "missed_of_all"), SPAM),
    "false_alarm_of_all": (Guarantee(0.05, DELTA, "false_alarm_of_all"), SPAM),
    "score": (Guarantee(0.12, DELTA, "score", tolerance=0.2), {}),
    "score and changed": (Guarantee({"score": 0.15, "changed": 0.1}, DELTA, tolerance=0.2), MULTI),
    "missed and false_alarm": (Guarantee({"missed": 0.06, "false_alarm": 0.1}, DELTA), SPAM),
    "changed by class": (Guarantee(0.1, DELTA, by="class"), {}),
    "changed decisions by class": (Guarantee(0.1, DELTA, by="class"), SPAM),
    "accuracy by class": (Guarantee({"ham": 0.08, "spam": 0.06}, DELTA, "accuracy"), {}),
    "accuracy_drop by class": (Guarantee(0.06, DELTA, "accuracy_drop", by="class"), {}),
    "changed by language": (Guarantee(0.1, DELTA, by="language"), {}),
    "missed and false_alarm by language": (
        Guarantee({"missed": 0.1, "false_alarm": 0.15}, DELTA, by="language"),
        SPAM,
    ),
    "changed by exit": (Guarantee(0.1, DELTA, by="exit"), {}),
    "missed and false_alarm by exit": (
        Guarantee({"missed": 0.15, "false_alarm": 0.2}, DELTA, by="exit"),
        SPAM,
    ),
}


def test_there_is_a_case_for_every_sentence() -> None:
    about_parts = {
        name for name, loss in LOSSES.items() if loss.unit != "example"
    }  # test_sentences_of_parts.py
    assert SAYS.keys() == LOSSES.keys() - about_parts
    risks = {risk for target, _ in CASES.values() for risk in target.risks}
    assert risks | {"label_accuracy"} == SAYS.keys()


def false_claims(case: str, log: Callable[[Rng], np.ndarray]) -> tuple[int, int]:
    """How many of DRAWS calibrations prove something, and how many of them claim what is false."""
    target, kind = CASES[case]
    everything = replace(population(kind.get("labels", 0)), decide=kind.get("decide", ""))
    rng, made, false = np.random.default_rng(1), 0, 0
    for _ in range(DRAWS):
        try:
            policy = calibrate(everything[log(rng)], "confidence", target).policy
        except NoSafeThreshold:
            continue
        made += 1
        seen, exits = answers(everything, policy)
        assert policy.certificate is not None
        false += any(
            SAYS[bound.risk](seen, members(everything, target.by, bound.group, seen, exits, bound.risk))
            > bound.epsilon
            for bound in policy.certificate.bounds
        )
    return made, false


SOME = [
    "changed",
    "accuracy_drop",
    "missed and false_alarm",
    "changed by class",
    "changed by language",
    "changed by exit",
]


@pytest.mark.parametrize(
    ("case", "log"), [*((case, all_new) for case in CASES), *((case, in_bursts) for case in SOME)]
)
def test_what_a_certificate_says_is_false_in_at_most_delta_of_all_draws(
    case: str, log: Callable[[Rng], np.ndarray]
) -> None:
    made, false = false_claims(case, log)
    assert made > DRAWS / 4  # one who always refuses is never wrong
    assert false <= CHANCE


@pytest.mark.parametrize("case", ["changed", "missed", "changed by language"])
def test_bounds_that_trust_what_they_see_say_what_is_false(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trusting(losses: Any, epsilon: float) -> float:
        return 0.0 if np.mean(losses) <= epsilon else 1.0

    for name, bound in BOUNDS.items():
        monkeypatch.setitem(BOUNDS, name, Bound(trusting, bound.examples_needed))
    assert false_claims(case, all_new)[1] > CHANCE
