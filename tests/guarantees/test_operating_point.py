"""How scores become decisions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.errors import BadOption, Incompatible, UnknownName
from offramp.guarantees.operating_point import OperatingPoint
from offramp.measuring.exit_table import fit_rule
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from offramp.trace import Trace

SCORES = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
NAMES = ["ham", "spam", "phish"]


@pytest.mark.parametrize(
    ("text", "decisions"),
    [
        ("", [0, 2]),
        ("spam>=0.3", [1, 1]),
        ("phish >= 0.4", [0, 1]),
        ("phish", [0, 1]),
        ("spam>=0.31,phish>=0.1", [[0, 1], [0, 1]]),
    ],
)
def test_scores_are_decided_about_at_thresholds(text: str, decisions: list) -> None:
    assert OperatingPoint.parse(text).decide(SCORES, NAMES).tolist() == decisions


def test_exits_are_decided_about_all_at_once() -> None:
    assert OperatingPoint.parse("spam>=0.3").decide(SCORES[None], NAMES).tolist() == [[1, 1]]


def test_a_number_is_cut_whatever_its_name() -> None:
    assert OperatingPoint.parse("stars>=2.5").decide(np.array([[2.4], [2.5]]), [""]).tolist() == [0, 1]


@pytest.mark.parametrize("text", ["", "spam>=0.3", "spam", "a>=0.5,b>=0.25"])
def test_the_text_form_is_read_back(text: str) -> None:
    assert str(OperatingPoint.parse(text)) == text


@pytest.mark.parametrize("text", ["spam>=high", "spam>=nan", "spam,ham", "spam,ham>=0.5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="decide="):
        OperatingPoint.parse(text)


def test_an_unknown_label_is_named_with_what_was_meant() -> None:
    with pytest.raises(UnknownName, match="'sapm'; did you mean spam"):
        OperatingPoint.parse("sapm>=0.5").decide(SCORES, NAMES)


MODELS = [
    (SINGLE_LABEL, ("ham", "spam"), "spam>=0.7"),
    (SINGLE_LABEL, ("ham", "spam"), "spam"),
    (SINGLE_LABEL, ("a", "b", "c"), "b>=0.2"),
    (SINGLE_LABEL, ("a", "b", "c"), "b"),
    (SINGLE_LABEL, ("a", "b", "c"), "a>=0.9,c>=0.05"),
    (MULTI_LABEL, ("toxic", "insult"), "insult>=0.8,toxic>=0.3"),
    (MULTI_LABEL, ("toxic", "insult"), "toxic>=0.95"),
    (REGRESSION, ("stars",), "score>=2.5"),
]


@pytest.mark.parametrize(("problem", "names", "text"), MODELS)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.5, 3.0, 60.0]))
def test_a_model_decides_as_its_scores_do(
    problem: Problem, names: tuple[str, ...], text: str, seed: int, scale: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, scale, (50, len(names))).astype(np.float32)
    point = OperatingPoint.parse(text)
    scores = problem.probabilities(logits) if problem.has_classes else logits
    decided = point.decisions(problem, names).decode(logits)
    assert (decided == point.decide(scores, names).reshape(50, -1)).all()


def test_a_score_at_its_threshold_is_a_yes() -> None:
    even = OperatingPoint.parse("spam>=0.5").decisions(SINGLE_LABEL, ("ham", "spam"))
    cut = OperatingPoint.parse("score>=2.5").decisions(REGRESSION, ("",))
    assert even.decode(np.ones((1, 2))).tolist() == cut.decode(np.array([[2.5]])).tolist() == [[1]]


def test_without_an_operating_point_the_outputs_mean_what_they_did() -> None:
    assert OperatingPoint().decisions(SINGLE_LABEL, ("ham", "spam")) is SINGLE_LABEL


@pytest.mark.parametrize(
    ("problem", "text"),
    [(SINGLE_LABEL, "spam>=1.0"), (MULTI_LABEL, "spam>=0"), (REGRESSION, "a>=1,b>=2"), (REGRESSION, "stars")],
)
def test_points_that_a_model_cannot_have_are_refused(problem: Problem, text: str) -> None:
    names = ("ham", "spam") if problem.has_classes else ("",)
    with pytest.raises(BadOption, match="decide="):
        OperatingPoint.parse(text).decisions(problem, names)


@pytest.mark.parametrize(("problem", "names", "text"), MODELS)
@pytest.mark.parametrize("rule", ["entropy:0.4", "patience:2", "margin:0.3", "agreement:0.8", "never"])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_a_live_policy_decides_as_on_the_trace_at_the_operating_point(
    problem: Problem, names: tuple[str, ...], text: str, rule: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (40, 4, len(names))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.02] = np.nan
    trace = Trace(
        logits,
        (1, 2, 3, 4),
        labels=None,
        lengths=np.ones(40),
        ids=np.arange(40),
        problem=problem,
        label_names=names,
        decide=text,
    )
    decided = trace.decided()
    policy = fit_rule(Policy.parse(rule), decided)
    view = OperatingPoint.parse(text).decisions(problem, names)
    live = policy.decide(logits, layers=trace.layers, problem_type=view)
    assert (live.exits == policy.decide_trace(decided).exits).all()
    taken = logits[np.arange(40), live.exits]
    np.testing.assert_array_equal(live.logits, taken)  # the model's own, not margins
    assert decided.decided() is decided


def test_labels_of_a_trace_are_decided_about_too() -> None:
    shared = {"layers": (1,), "lengths": np.ones(2), "ids": np.arange(2)}
    classes = Trace(
        np.zeros((2, 1, 3)), labels=[0, 2], label_names=("a", "b", "c"), decide="c>=0.5", **shared
    )
    several = Trace(
        np.zeros((2, 1, 2)),
        labels=[[0, 1], [1, 0]],
        label_names=("a", "b"),
        problem=MULTI_LABEL,
        decide="b>=0.3",
        **shared,
    )
    numbers = Trace(np.zeros((2, 1, 1)), labels=[1.0, 2.5], problem=REGRESSION, decide="x>=2.5", **shared)
    found = [each.decided().labels for each in (classes, several, numbers)]
    assert [each.tolist() for each in found if each is not None] == [[[0], [1]], [[1], [0]], [[0], [1]]]


def test_a_rule_that_mixes_the_logits_of_exits_is_refused_at_an_operating_point() -> None:
    view = OperatingPoint.parse("spam>=0.7").decisions(SINGLE_LABEL, ("ham", "spam"))
    with pytest.raises(Incompatible, match="operating point"):
        Policy.parse("ensemble:0.7").decide(np.zeros((1, 2, 2)), problem_type=view)
