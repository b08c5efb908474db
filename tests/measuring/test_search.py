"""Which rules are tried, on which examples, and when a static cut would do."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from offramp.errors import BadOption, ReusedData
from offramp.measuring import Budget, Guarantee, MaxLoss, MinSpeedup, calibrate
from offramp.measuring.scores import measure
from offramp.measuring.targets import Target
from offramp.policy import Policy
from offramp.rules.agreement import Agreement
from offramp.trace import Trace

Make = Callable[..., Trace]
TARGETS = [Guarantee(0.1), MaxLoss(2.0), MinSpeedup(1.5), Budget(4.0)]
REACHED = [MaxLoss(2.0), MinSpeedup(1.5), Budget(4.0)]


def numbers(make_trace: Make, examples: int = 900) -> Trace:
    """A regression whose exits come closer to the truth."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=examples)
    noise = rng.normal(size=(examples, 4)) * rng.gamma(1, 1, (examples, 1)) * [0.5, 0.3, 0.1, 0.02]
    trace = make_trace(examples, exits=4, classes=1, labels=truth, problem="regression", metrics=())
    return replace(trace, logits=(truth[:, None] + noise)[..., None])


@pytest.mark.parametrize("target", TARGETS)
def test_a_rule_that_learns_is_fitted_on_some_examples_and_calibrated_on_the_others(
    target: Target, make_trace: Make
) -> None:
    trace = make_trace(900)
    found = calibrate(trace, "agreement", target)
    assert (found.fitted, found.fitted_on, found.calibrated_on) == (("agreement",), 300, 600)
    fitted_on = np.setdiff1d(trace.ids, found.trace.ids)
    assert len(found.trace) == 600
    assert found.policy.rule == Agreement.fit(trace[fitted_on])
    backwards = calibrate(trace[::-1], "agreement", target)
    assert set(backwards.trace.ids) == set(found.trace.ids), "the split depends on the examples alone"


def test_a_certificate_never_rests_on_examples_that_the_rule_was_fitted_on(make_trace: Make) -> None:
    trace = make_trace(900)
    found = calibrate(trace, Policy(Agreement.fit(trace)), Guarantee(0.1))
    assert found.policy.certificate is not None
    assert (found.policy.certificate.fitted_on, found.policy.certificate.examples) == (300, 600)


@pytest.mark.parametrize("target", REACHED)
def test_a_learned_policy_reaches_its_target_on_the_examples_that_set_its_threshold(
    target: Target, make_trace: Make
) -> None:
    found = calibrate(make_trace(900), "agreement", target)
    seen = measure(found.policy, found.trace)
    assert seen["mean_layer"] < 6
    if isinstance(target, MaxLoss):
        assert seen["scores"]["acc"] >= seen["full_depth"]["acc"] - 0.02
    else:
        assert seen["mean_layer"] <= 4


@pytest.mark.parametrize("target", REACHED)
def test_all_rules_are_compared_on_the_examples_that_none_was_fitted_on(
    target: Target, make_trace: Make
) -> None:
    trace = make_trace(900)
    held_out = calibrate(trace, "agreement", target).trace
    with pytest.warns(ReusedData):
        best = calibrate(trace, None, target)
    np.testing.assert_array_equal(best.trace.ids, held_out.ids)
    alone = [
        calibrate(held_out, rule, target).policy for rule in ("entropy", "confidence", "margin", "layer")
    ]
    assert best.policy in [*alone, calibrate(trace, "agreement", target).policy]


@pytest.mark.filterwarnings("ignore:one of 2 rules")
@pytest.mark.parametrize(
    "target", [Guarantee(0.1, tolerance=0.2), MaxLoss(2.0), MinSpeedup(1.2), Budget(3.0)]
)
def test_in_regression_the_rules_that_compare_classes_are_left_out(target: Target, make_trace: Make) -> None:
    found = calibrate(numbers(make_trace), None, target)
    assert [rule.split(":")[0] for rule in found.rules] == ["agreement", "layer"]
    assert "tolerance=" in found.rules[0]


def test_a_tolerance_of_nothing_leaves_only_static_cuts(make_trace: Make) -> None:
    trace = numbers(make_trace)
    constant = replace(trace, logits=np.zeros_like(trace.logits))
    assert calibrate(constant, None, Guarantee(0.1, tolerance=0.0)).rules == ("layer",)


def test_the_rules_own_tolerance_comes_first(make_trace: Make) -> None:
    policy = calibrate(numbers(make_trace), "agreement:0,tolerance=0.1", Guarantee(0.1, tolerance=0.3)).policy
    assert policy.rule.tolerance == 0.1
    assert (
        calibrate(numbers(make_trace), "agreement", Guarantee(0.1, tolerance=0.3)).policy.rule.tolerance
        == 0.3
    )


def test_few_examples_leave_out_the_rule_that_learns(make_trace: Make) -> None:
    assert "agreement" not in calibrate(make_trace(5), None, Guarantee(0.9, delta=0.9)).rules
    with pytest.raises(BadOption, match="too few to fit"):
        calibrate(make_trace(5), "agreement", Guarantee(0.9, delta=0.9))


def test_a_budget_can_be_met_by_a_static_cut(make_trace: Make) -> None:
    policy = calibrate(make_trace(500), "layer", Budget(3.5)).policy
    assert str(policy) == "layer:3"


def all_alike(make_trace: Make) -> Trace:
    """Every example is right from layer 3 on, and its logits do not show when."""
    trace = make_trace(900)
    right = np.eye(3)[trace.labels]
    wrong = np.eye(3)[(trace.labels + 1) % 3]
    noise = np.random.default_rng(0).gamma(1, 1, (900, 6, 1))
    logits = np.stack([wrong if exit < 2 else right for exit in range(6)], axis=1) * noise
    return replace(trace, logits=logits)


@pytest.mark.filterwarnings("ignore:one of 2 rules")
@pytest.mark.parametrize("target", TARGETS)
def test_a_static_cut_that_is_as_good_is_found(target: Target, make_trace: Make) -> None:
    found = calibrate(all_alike(make_trace), ["entropy", "layer"], target)
    assert found.static_cut is not None
    assert str(found.static_cut.policy) == "layer:3"
    assert found.static_cut.mean_layer == 3


def test_a_static_cut_that_costs_more_is_not_recommended(make_trace: Make) -> None:
    found = calibrate(make_trace(3000), ["agreement", "layer"], Guarantee(0.1))
    assert isinstance(found.policy.rule, Agreement)
    assert found.static_cut is None
    assert calibrate(make_trace(3000), "entropy", Guarantee(0.1)).static_cut is None
