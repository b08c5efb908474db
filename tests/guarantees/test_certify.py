"""certify is tested for what it says: over many draws of rows, how often is each of its sentences false?"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from offramp import certify
from offramp.errors import BadData, BadOption
from offramp.guarantees.certify import RISKS, Certification
from offramp.guarantees.comparison import Predicted
from offramp.guarantees.sequential import SequentialTest

DRAWS, DELTA, ROWS = 200, 0.1, 300
CHANCE = binom.ppf(0.999, DRAWS, DELTA)
"""More false sentences than this are no bad luck."""
TRUTH = np.random.default_rng(0)
PEOPLE = 5000
SCORES = TRUTH.random((PEOPLE, 3))
OLD = SCORES / SCORES.sum(1, keepdims=True)
NEW = np.where(TRUTH.random((PEOPLE, 1)) < 0.15, OLD[:, ::-1], OLD + TRUTH.normal(0, 0.01, (PEOPLE, 3)))
LABELS = np.where(TRUTH.random(PEOPLE) < 0.8, OLD.argmax(1), TRUTH.integers(3, size=PEOPLE)).astype(str)
MANY = (TRUTH.random((PEOPLE, 3)) < 0.5).astype(int)
NAMES = ["0", "1", "2"]

old, new = OLD.argmax(1), NEW.argmax(1)
yes, still = OLD[:, 0] >= 0.4, NEW[:, 0] >= 0.4
right, now_right = old.astype(str) == LABELS, new.astype(str) == LABELS
many_old, many_new = OLD[:, :2] >= 0.3, NEW[:, :2] >= 0.3

CASES: dict[str, tuple[dict[str, Any], float]] = {
    "changed": ({}, np.mean(old != new)),
    "changed at a threshold": ({"decide": "0>=0.4"}, np.mean(yes != still)),
    "changed, several labels": (
        {"decide": "0>=0.3,1>=0.3"},
        np.mean((many_old != many_new).any(1)),
    ),
    "missed": ({"risk": "missed", "decide": "0>=0.4"}, np.mean(~still[yes])),
    "false_alarm": ({"risk": "false_alarm", "decide": "0>=0.4"}, np.mean(still[~yes])),
    "missed_of_all": ({"risk": "missed_of_all", "decide": "0>=0.4"}, np.mean(yes & ~still)),
    "false_alarm_of_all": ({"risk": "false_alarm_of_all", "decide": "0>=0.4"}, np.mean(still & ~yes)),
    "missed, several labels": (
        {"risk": "missed", "decide": "0>=0.3,1>=0.3"},
        np.mean((many_old & ~many_new).any(1)[many_old.any(1)]),
    ),
    "score": ({"risk": "score", "tolerance": 0.1}, np.mean((np.abs(OLD - NEW) > 0.1).any(1))),
    "accuracy": ({"risk": "accuracy", "labels": LABELS}, np.mean(right & ~now_right)),
    "accuracy_drop": ({"risk": "accuracy_drop", "labels": LABELS}, right.mean() - now_right.mean()),
    "accuracy, several labels": (
        {"risk": "accuracy", "decide": "0>=0.3,1>=0.3", "labels": MANY},
        np.mean((many_old == MANY[:, :2]) & (many_new != MANY[:, :2])),
    ),
}
"""What is claimed, and the truth about the population, computed without the library."""


def certifications(case: str, times: float, draws: int = DRAWS, **options: Any) -> list[Certification]:
    """Verdicts on samples of the population, for a bound of so many times the true risk."""
    claim, truth = CASES[case]
    rng, made = np.random.default_rng(1), []
    for _ in range(draws):
        rows = rng.integers(PEOPLE, size=ROWS)
        chosen = claim | ({"labels": claim["labels"][rows]} if "labels" in claim else {})
        made.append(
            certify(OLD[rows], NEW[rows], truth * times, delta=DELTA, label_names=NAMES, **chosen, **options)
        )
    return made


def test_every_risk_is_simulated() -> None:
    assert {claim.get("risk", "changed") for claim, _ in CASES.values()} == set(RISKS)


@pytest.mark.parametrize("early", [False, True], ids=["all rows", "stop early"])
@pytest.mark.parametrize("case", CASES)
def test_a_sentence_of_certify_is_false_no_more_often_than_delta(case: str, early: bool) -> None:
    truth, draws = CASES[case][1], DRAWS // 2 if early else DRAWS
    chance = binom.ppf(0.999, draws, DELTA)
    too_low = certifications(case, 0.999, draws, stop_early=early)
    assert sum(made.proven for made in too_low) <= chance
    true = certifications(case, 1.001, draws, stop_early=early)
    assert sum(made.verdict == "refuted" for made in true) <= chance
    evidence = [made.claims[0].evidence[0] for made in true]
    assert sum(not each.interval[0] <= truth <= each.interval[1] for each in evidence) <= chance
    assert sum(made.claims[0].provable < truth for made in true) <= chance


@pytest.mark.parametrize("case", CASES)
def test_a_generous_bound_is_proven_and_a_strict_one_refuted(case: str) -> None:
    """A test that never decides would keep every promise."""
    made = certifications(case, 3.5, 40)
    assert sum(each.proven for each in made) > 20
    if case != "accuracy_drop":
        made = certifications(case, 0.4, 40)
        assert sum(each.verdict == "refuted" for each in made) > 20


def test_two_risks_are_proven_together_only_if_each_is() -> None:
    claims = {"missed": CASES["missed"][1] * 3, "false_alarm": CASES["false_alarm"][1] * 0.999}
    rng, both, one = np.random.default_rng(2), 0, 0
    for _ in range(DRAWS):
        rows = rng.integers(PEOPLE, size=ROWS)
        made = certify(OLD[rows], NEW[rows], claims, delta=DELTA, decide="0>=0.4", label_names=NAMES)
        both += made.proven
        one += made.claims[0].verdict == "proven"
    assert both <= CHANCE < one


def burst_log(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a log in which a fifth of the texts comes about twenty times, and whether each has changed."""
    texts = np.arange(400)
    changed = rng.random(400) < 0.05
    rows = np.repeat(texts, np.where(texts < 80, 20, 1))
    return rows, changed[rows]


@pytest.mark.parametrize("early", [False, True])
def test_repeated_texts_prove_nothing_that_distinct_ones_do_not(early: bool) -> None:
    rng, told, untold = np.random.default_rng(4), 0, 0
    for _ in range(DRAWS):
        rows, changed = burst_log(rng)
        new = np.where(changed, "b", "a")
        options: dict[str, Any] = {"delta": DELTA, "label_names": ["a", "b"], "stop_early": early}
        old = np.full(len(rows), "a")
        told += certify(old, new, 0.0499, texts=[f"text {row}" for row in rows], **options).proven
        untold += certify(old, new, 0.0499, **options).proven
    assert told <= CHANCE < untold


def test_both_samples_are_shown_if_texts_are_repeated() -> None:
    texts = [f"text {row // 2}" for row in range(400)]
    made = certify(["a"] * 400, ["a"] * 400, 0.02, texts=texts)
    assert [(each.sample, each.examples) for each in made.claims[0].evidence] == [
        ("rows", 400),
        ("distinct texts", 200),
    ]
    assert made.repeated == 200
    assert made.claims[0].provable == pytest.approx(1 - 0.05 ** (1 / 200))


def test_case_and_white_space_do_not_make_a_text_distinct() -> None:
    texts = [word for row in range(200) for word in (f"text {row}", f"Text  {row} ")]
    assert certify(["a"] * 400, ["a"] * 400, 0.02, texts=texts).repeated == 200


@pytest.mark.parametrize("changed", [31, 60])
def test_a_false_claim_about_these_rows_alone_is_rarely_proven(changed: int) -> None:
    old, proven = np.zeros(600, int), 0
    new = (np.arange(600) < changed).astype(int)
    for seed in range(DRAWS):
        options: dict[str, Any] = {"stop_early": True, "finite": True, "seed": seed, "delta": DELTA}
        proven += certify(old, new, 0.05, label_names=["0", "1"], **options).proven
    assert proven <= CHANCE


def test_what_is_printed_about_a_proof() -> None:
    new = np.where(np.arange(3000) < 30, "ham", "spam")
    made = certify(["spam"] * 3000, new, 0.02, label_names=["ham", "spam"], names=("A", "B"), data="logs.csv")
    (claim,) = made.claims
    assert (made.proven, made.verdict, claim.more_rows) == (True, "proven", 0)
    assert claim.certificate is not None
    assert claim.certificate.conditions is None
    assert claim.certificate.summary == (
        "With 95% confidence, at most 2% of predictions differ from A (on data like logs.csv)."
    )
    assert claim.certificate.evidence.startswith(
        "Tested on 3000 examples (logs.csv) with the exact binomial bound"
    )
    assert [(each.name, each.rows, each.different) for each in made.by_class] == [
        ("ham", 0, 0),
        ("spam", 3000, 30),
    ]
    assert (made.differences[0].old, made.differences[0].new) == ("spam", "ham")
    assert made.to_json()["claims"][0]["certificate"]["promise"] == claim.certificate.promise


@pytest.mark.parametrize("changed", [3, 9])
def test_more_rows_of_the_same_kind_bring_the_verdict(changed: int) -> None:
    """Too few differences for a proof of 3%, and too many."""

    def verdict(rows: int, different: int) -> Certification:
        new = (np.arange(rows) < different).astype(int)
        return certify(np.zeros(rows, int), new, 0.03, label_names=["0", "1"])

    first = verdict(200, changed)
    more = first.claims[0].more_rows
    assert first.verdict == "undecided"
    assert more
    rows = 200 + more
    wanted = "proven" if changed == 3 else "refuted"
    rounding = 1 if changed == 9 else 0  # a share that is rounded up refutes, one that is rounded down proves
    assert verdict(rows, int(rows * changed / 200) + rounding).verdict == wanted


def rare_yes(rows: int, missed: Callable[[np.ndarray], np.ndarray], **options: Any) -> Certification:
    """A tenth of the rows is a yes, of which some are missed."""
    numbers = np.arange(rows)
    old = np.where(numbers % 10 == 0, "yes", "no")
    new = np.where(missed(numbers), "no", old)
    return certify(old, new, 0.02, risk="missed", decide="yes", **options)


def test_more_rows_are_those_of_the_file_and_not_only_those_that_count() -> None:
    def verdict(rows: int) -> Certification:
        return rare_yes(rows, lambda numbers: numbers % 1000 == 0)

    first = verdict(3000)
    more = first.claims[0].more_rows
    assert (first.verdict, first.claims[0].evidence[0].examples) == ("undecided", 300)
    assert more
    assert verdict(3000 + more).proven
    assert not verdict(3000 + more // 2).proven


def test_more_rows_allow_for_texts_that_repeat() -> None:
    texts = [f"text {number // 20}, {number % 10}" for number in range(4000)]  # each twice
    made = rare_yes(4000, lambda numbers: np.isin(numbers % 2000, [0, 10]), texts=texts)
    rows, distinct = made.claims[0].evidence
    assert [(each.examples, each.observed) for each in (rows, distinct)] == [(400, 0.01), (200, 0.01)]
    assert rows.more_rows
    assert distinct.more_rows == pytest.approx(2 * rows.more_rows + 4000, abs=30)


@pytest.mark.parametrize("share", [100, 25])
def test_a_test_by_betting_says_how_many_examples_it_needs(share: int) -> None:
    """One example in so many is lost: half of the bound, or twice."""

    def verdict(examples: int) -> str | None:
        return SequentialTest(0.02, 0.05).add((np.arange(examples) % share == share // 2).astype(float))

    test = SequentialTest(0.02, 0.05)
    assert test.add((np.arange(200) % share == share // 2).astype(float)) is None
    needed = test.examples_needed()
    assert needed
    assert verdict(needed // 2) is None
    assert verdict(needed + share) == ("proven" if share == 100 else "refuted")


def test_too_few_rows_are_found_before_anything_is_predicted() -> None:
    def predict(rows: np.ndarray) -> np.ndarray:
        raise AssertionError("a model ran")

    never = Predicted(100, predict), Predicted(100, predict)
    for early in (False, True):
        with pytest.raises(BadData, match=r"100 rows cannot prove missed of at most 0\.01"):
            certify(*never, 0.01, risk="missed", decide="1", label_names=NAMES, stop_early=early)
        with pytest.raises(BadData, match="30 rows of the language 'en'"):
            certify(
                *never, 0.05, by="language", categories=["de"] * 70 + ["en"] * 30, stop_early=early, delta=0.1
            )


def test_rows_are_predicted_only_until_there_is_a_verdict() -> None:
    asked: list[int] = []

    def predict(rows: np.ndarray) -> np.ndarray:
        asked.extend(rows.tolist())
        return np.tile([0.9, 0.1], (len(rows), 1))

    made = certify(Predicted(5000, predict), Predicted(5000, lambda rows: predict(rows)), stop_early=True)
    assert (made.verdict, made.claims[0].evidence[0].examples) == ("proven", 179)
    assert made.examined < 300
    assert len(asked) == 2 * made.examined  # each row once


def test_a_hopeless_claim_is_given_up() -> None:
    new = (np.arange(3000) % 52 == 0).astype(int)
    made = certify(np.zeros(3000, int), new, 0.02, label_names=["0", "1"], stop_early=True)
    assert (made.verdict, made.proven) == ("hopeless", False)
    assert made.examined < 3000


def labels(**changes: Any) -> dict[str, Any]:
    return {"old": ["a", "b"] * 200, "new": ["a", "b"] * 200} | changes


BAD_DATA: Mapping[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "lengths": (lambda: labels(new=["a", "b"]), "old has 400 rows and new has 2"),
    "an unknown label": (
        lambda: labels(new=["a", "b"] * 199 + ["a", "c"]),
        "new, row 400: the label 'c' is not in old",
    ),
    "a label that one side lacks": (
        lambda: labels(new=["a"] * 400),
        "old, row 2: the label 'b' is not in new",
    ),
    "NaN": (
        lambda: {"old": [0.5] * 400, "new": [0.5] * 399 + [np.nan], "decide": "x>=0.5"},
        "new, row 400: a score is NaN",
    ),
    "NaN in a row that would not be examined": (
        lambda: {"old": [0.5] * 4000, "new": [0.5] * 3999 + [np.nan], "decide": "x>=0.5", "stop_early": True},
        "new, row 4000: a score is NaN",
    ),
    "no label": (lambda: labels(old=["a", None] * 200, new=["a", None] * 200), "old, row 2: no label"),
    "no correct label": (
        lambda: labels(labels=np.array(["a", "b"] * 199 + ["a", np.nan], object), risk="accuracy"),
        "labels, row 400: no label",
    ),
    "too few rows": (
        lambda: {"old": ["a"] * 100, "new": ["a"] * 100},
        "100 rows cannot prove.* it takes 149",
    ),
    "too few rows to stop early": (
        lambda: {"old": ["a"] * 150, "new": ["a"] * 150, "stop_early": True},
        "150 rows cannot prove.* it takes 179",
    ),
    "too few yes": (
        lambda: labels(new=["a", "b"] * 200, decide="a", risk="missed", guarantee=0.01),
        r"200 examples that old says yes to \(rows\) cannot prove missed.* it takes 299",
    ),
    "too few distinct texts": (
        lambda: labels(texts=["one", "two"] * 200),
        "2 distinct texts cannot prove",
    ),
    "labels and scores": (lambda: labels(new=[0.5] * 400, label_names=["a", "b"]), "have different columns"),
    "correct labels that are unknown": (
        lambda: labels(labels=["a", "x"] * 200, risk="accuracy"),
        "labels, row 2: the label 'x' is not one of",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_rows_are_named_and_nothing_is_certified(case: str) -> None:
    make, message = BAD_DATA[case]
    with pytest.raises(BadData, match=message):
        certify(**make())


BAD_OPTIONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "a bound above 1": ({"guarantee": 2.0}, "between 0 and 1"),
    "an unknown risk": ({"risk": "mised"}, "did you mean missed"),
    "delta": ({"delta": 0.0}, "delta=0.0"),
    "no labels": ({"risk": "accuracy"}, "needs the correct labels"),
    "no operating point": ({"risk": "missed"}, "yes and no; pass decide="),
    "no tolerance": ({"risk": "score"}, "needs tolerance="),
    "no scores": ({"risk": "score", "tolerance": 0.1}, "needs scores"),
    "a threshold for labels": ({"decide": "a>=0.5"}, "needs scores"),
    "finite without a draw": ({"finite": True}, "needs stop_early"),
    "finite and conditional": (
        {"finite": True, "stop_early": True, "risk": "missed", "decide": "a"},
        "does not apply",
    ),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_that_make_no_sense_are_refused(case: str) -> None:
    options, message = BAD_OPTIONS[case]
    with pytest.raises(BadOption, match=message):
        certify(**labels(**options))


def test_numbers_need_a_tolerance_or_a_cut() -> None:
    numbers = np.linspace(0, 5, 400)
    with pytest.raises(BadOption, match="numbers need tolerance"):
        certify(numbers, numbers)
    assert certify(numbers, numbers + 0.1, tolerance=0.2).proven
    assert not certify(numbers, numbers + 0.1, decide="score>=2.5").proven
    made = certify(numbers, numbers + 0.1, 0.1, decide="stars>=2.5", labels=numbers, risk="accuracy")
    assert made.claims[0].claim.endswith("where the decision is stars>=2.5")


def test_decisions_about_several_labels_are_compared_row_by_row() -> None:
    old = np.zeros((400, 2), int)
    new = old.copy()
    new[:3, 1] = 1
    made = certify(old, new, {"changed": 0.03, "false_alarm": 0.03}, label_names=["toxic", "rude"])
    assert made.proven
    assert made.claims[0].evidence[0].observed == 3 / 400
    assert (made.differences[0].old, made.differences[0].new) == ("none", "rude")


def test_a_bound_holds_in_every_group_or_is_not_proven() -> None:
    old = np.array(["ham", "spam"] * 500)
    languages = np.array(["de"] * 800 + ["en"] * 200)
    new = old.copy()
    new[-20:] = "ham"  # a tenth of the English ones, a percent of all
    assert certify(old, new, 0.05).proven
    made = certify(old, new, 0.05, by="language", categories=languages)
    assert [(claim.group, claim.verdict) for claim in made.claims] == [("de", "proven"), ("en", "undecided")]
    assert not made.proven
    (proof,) = (claim.certificate for claim in made.claims if claim.certificate)
    assert "where the language is de" in proof.summary
    assert "separately among those whose language is 'de'" in proof.promise
    by_class = certify(old, new, 0.03, by="class")
    assert [(claim.group, claim.evidence[0].examples) for claim in by_class.claims] == [
        ("ham", 500),
        ("spam", 500),
    ]
    assert [claim.evidence[0].observed for claim in by_class.claims] == [0, 10 / 500]


def test_decisions_are_yes_or_no_in_the_groups_of_a_class() -> None:
    old, new = np.linspace(0, 1, 1000), np.linspace(0, 1, 1000) ** 1.02
    made = certify(old, new, 0.05, decide="spam>=0.3", label_names=["spam"], by="class")
    assert [claim.group for claim in made.claims] == ["spam", "not spam"]
    lost = np.mean((new < 0.3)[old >= 0.3])
    assert made.claims[0].evidence[0].observed == pytest.approx(lost)
    early = certify(old, new, 0.05, decide="spam>=0.3", label_names=["spam"], by="class", stop_early=True)
    assert early.proven


def test_every_group_that_is_too_small_is_named() -> None:
    old = np.array(["ham"] * 300)
    languages = ["de"] * 250 + ["en"] * 30 + ["fr"] * 20
    with pytest.raises(
        BadData, match=r"30 rows of the language 'en' .* takes 149; 20 rows of the language 'fr'"
    ):
        certify(old, old, 0.02, by="language", categories=languages)
    with pytest.raises(BadOption, match="name of the categories"):
        certify(old, old, 0.02, by="language")
