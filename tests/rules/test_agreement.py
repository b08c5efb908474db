"""The rule that learns: its probability means what it says, and its certificates rest on other examples."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from offramp.errors import BadOption, BadPolicy, Incompatible
from offramp.measuring import Guarantee, calibrate
from offramp.measuring.calibrate import fit
from offramp.policy import Policy, fold
from offramp.problems import MULTI_LABEL
from offramp.rules.agreement import Agreement
from offramp.trace import Trace

Make = Callable[..., Trace]
PROBLEMS = ["single_label_classification", "multi_label_classification", "regression"]


def trace_of(problem_type: str, examples: int, seed: int) -> Trace:
    """Exits that approach the last one's output in random steps, sooner for easy examples."""
    rng = np.random.default_rng(seed)
    outputs = 1 if problem_type == "regression" else 3
    goal = rng.normal(0, 2, (examples, 1, outputs))
    noise = (
        rng.gamma(1, 1, (examples, 1, 1))
        * rng.normal(0, 1, (examples, 5, outputs))
        * [[[2], [1.5], [1], [0.5], [0]]]
    )
    return Trace(
        goal + noise,
        layers=(0, 1, 2, 3, 4),
        labels=None,
        lengths=np.full(examples, 7),
        ids=np.arange(examples),
        problem=problem_type,
    )


def estimates(rule: Agreement, trace: Trace) -> np.ndarray:
    return fold(rule, trace.logits, layers=trace.layers, problem_type=trace.problem).readiness


@pytest.mark.parametrize("problem_type", PROBLEMS)
def test_the_estimated_probability_is_how_often_full_depth_agrees(problem_type: str) -> None:
    tolerance = 0.5 if problem_type == "regression" else None
    rule = Agreement.fit(trace_of(problem_type, 4000, seed=1), tolerance)
    fresh = trace_of(problem_type, 20_000, seed=2)
    probability = estimates(rule, fresh)[:, 1:4].ravel()
    same = np.stack([fresh.agrees(fresh.logits[:, exit], tolerance) for exit in (1, 2, 3)], axis=1).ravel()
    for low in (0.7, 0.8, 0.9):  # below, no policy would let an example leave
        inside = (probability >= low) & (probability < low + 0.1)
        assert inside.sum() > 500
        assert abs(same[inside].mean() - probability[inside].mean()) < 0.05
    assert np.corrcoef(probability, same)[0, 1] > 0.3


def test_the_reference_decides_what_agreement_means() -> None:
    trace = trace_of(PROBLEMS[0], 3000, seed=1)
    contrary = replace(trace, reference=-trace.logits[:, -1])
    assert estimates(Agreement.fit(trace), trace)[:, 3].mean() > 0.8
    assert estimates(Agreement.fit(contrary), trace)[:, 3].mean() < 0.3


def test_features_follow_the_class_predicted_now() -> None:
    rule = Agreement()
    state, first = rule.observe(rule.start((1, 1)), np.array([[[3.0, 0.0]]]))
    np.testing.assert_allclose(first[0], [[3, 3, 3, 3, 3, 0]])
    state, second = rule.observe(state, np.array([[[0.0, 1.0]]]))  # class 1, which had log-odds of -3
    np.testing.assert_allclose(second[0], [[1, -3, -1, -3, 1, 0]])
    _, third = rule.observe(state, np.array([[[0.0, 2.0]]]))
    np.testing.assert_allclose(third[0], [[2, 1, 0, -3, 2, 1]], atol=1e-12)


def test_of_several_labels_the_least_certain_counts() -> None:
    rule = Agreement()
    _, features = rule.observe(rule.start((1, 2)), MULTI_LABEL.choices(np.array([[5.0, -0.5]])))
    np.testing.assert_allclose(features[0, 0, 0], 0.5)


def test_an_exit_that_is_not_finite_counts_as_undecided() -> None:
    rule = Agreement()
    start, _ = rule.observe(rule.start((1, 1)), np.array([[[3.0, 0.0]]]))
    _, broken = rule.observe(start, np.array([[[np.nan, 0.0]]]))
    _, even = rule.observe(start, np.array([[[0.0, 0.0]]]))
    np.testing.assert_array_equal(broken, even)


def test_coefficients_survive_json_and_are_not_in_the_text() -> None:
    policy = Policy(Agreement.fit(trace_of(PROBLEMS[0], 200, seed=1)), 0.98)
    assert str(policy) == "agreement:0.98"
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_a_text_takes_the_coefficients_of_the_stored_policy() -> None:
    stored = Policy(Agreement.fit(trace_of(PROBLEMS[0], 200, seed=1)), 0.98)
    assert Policy.parse("agreement:0.9").with_fit_of(stored) == replace(stored, threshold=0.9)
    assert Policy.parse("entropy:0.9").with_fit_of(stored) == Policy.parse("entropy:0.9")


@pytest.mark.parametrize(
    ("rule", "message"),
    [(Agreement(), "not fitted"), (Agreement(coefficients=((0.0,) * 7,)), "fitted for 1 exit")],
)
def test_a_rule_that_does_not_fit_the_exits_is_refused(rule: Agreement, message: str) -> None:
    with pytest.raises(Incompatible, match=message):
        Policy(rule, 0.5).exits(np.zeros((1, 3, 2)))


def test_regression_needs_a_tolerance() -> None:
    with pytest.raises(BadOption, match="tolerance"):
        Agreement.fit(trace_of("regression", 50, seed=1))


def test_the_examples_that_a_rule_was_fitted_on_are_not_those_that_it_is_tested_on() -> None:
    trace = trace_of(PROBLEMS[0], 900, seed=1)
    candidate = fit(trace, Policy(Agreement()), fit_on=None)
    assert candidate.fitted_on == 300
    assert len(candidate.trace) == 600
    fitted_on = np.setdiff1d(trace.ids, candidate.trace.ids)
    assert candidate.policy.rule == Agreement.fit(trace[fitted_on])


def test_a_certificate_says_how_many_examples_the_rule_was_fitted_on() -> None:
    policy = calibrate(trace_of(PROBLEMS[0], 3000, seed=1), "agreement", Guarantee(0.05)).policy
    assert policy.certificate is not None
    assert (policy.certificate.examples, policy.certificate.fitted_on) == (2000, 1000)


@pytest.mark.parametrize("problem_type", PROBLEMS)
def test_promises_of_a_learned_rule_are_broken_no_more_often_than_delta(problem_type: str) -> None:
    tolerance = 0.5 if problem_type == "regression" else None
    target = Guarantee(0.1, delta=0.1, tolerance=tolerance)
    population = trace_of(problem_type, 4000, seed=3)
    broken = 0
    for seed in range(60):
        rows = np.random.default_rng(seed).integers(len(population), size=600)
        policy = calibrate(population[rows], "agreement", target).policy
        exits = policy.exits(population.logits, layers=population.layers, problem_type=problem_type)
        kept = np.stack([population.agrees(population.logits[:, exit], tolerance) for exit in range(5)])
        broken += 1 - kept[exits, np.arange(len(exits))].mean() > target.epsilon
    assert broken <= 13  # 60 draws at 0.1: more has a probability of 0.1%


def test_without_a_rule_the_best_of_five_shares_delta(make_trace: Make) -> None:
    policy = calibrate(make_trace(3000), None, Guarantee(0.1)).policy
    assert policy.certificate is not None
    assert policy.certificate.rules_tried == 5


def test_a_threshold_typed_later_takes_the_fit_and_no_other_options() -> None:
    stored = Policy.parse("agreement:0.9")
    stored = replace(stored, rule=Agreement(coefficients=((0, 1, 0, 0, 0, 0, 0),) * 2))
    found = Policy.parse("agreement:0.8").with_fit_of(stored)
    assert (found.threshold, found.rule) == (0.8, stored.rule)
    with pytest.raises(BadPolicy, match="other options"):
        Policy.parse("agreement:0.8,tolerance=0.5").with_fit_of(stored)


def test_coefficients_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(BadPolicy, match="calibrate it again"):
        Agreement(coefficients=((float("nan"), 1, 0, 0, 0, 0, 0),))
