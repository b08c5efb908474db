"""calibrate() reaches its target on the trace that it was given, or says that it can not."""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from offramp.data.metrics import compute
from offramp.errors import BadOption, NoSafeThreshold, ReusedData, UnknownName
from offramp.guarantees.bounds import betting_examples, binomial_examples
from offramp.measuring import Budget, Guarantee, MaxLoss, MinSpeedup, calibrate, sweep
from offramp.measuring.cost import macs
from offramp.measuring.proof import threshold_grid
from offramp.measuring.targets import Target
from offramp.numerics import softmax
from offramp.policy import Policy
from offramp.rules import RULES
from offramp.trace import Trace

Make = Callable[..., Trace]


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def outcome(policy: Policy, trace: Trace) -> tuple[float, float, float]:
    """Mean layers, accuracy, and the share of predictions that differ from full depth."""
    done = policy.decide(trace.logits, trace.gates, trace.layers, trace.problem)
    predictions = done.logits.argmax(-1)
    return (
        float(np.asarray(trace.layers)[done.exits].mean()),
        compute(["acc"], trace.labels, predictions)["acc"],
        float(np.mean(predictions != trace.logits[:, -1].argmax(-1))),
    )


@pytest.mark.parametrize("points", [0.5, 2.0, 10.0])
def test_max_loss_is_kept_and_the_next_looser_threshold_breaks_it(points: float, make_trace: Make) -> None:
    trace = make_trace(1000)
    full = compute(["acc"], trace.labels, trace.logits[:, -1].argmax(-1))["acc"]
    layers, accuracy, _ = outcome(calibrate(trace, "entropy", MaxLoss(points)).policy, trace)
    assert accuracy >= full - points / 100
    cheaper = [p for p in sweep(trace, "entropy").curves["entropy"].points if p.cost.mean_layer < layers]
    assert all(point.scores["acc"] < full - points / 100 for point in cheaper)


def test_max_loss_may_be_of_another_metric(make_trace: Make) -> None:
    trace = make_trace(500, metrics=("acc", "mcc"))
    policy = calibrate(trace, "confidence", MaxLoss(3.0, metric="mcc")).policy
    answers = policy.decide(trace.logits).logits.argmax(-1)
    full = compute(["mcc"], trace.labels, trace.logits[:, -1].argmax(-1))["mcc"]
    assert compute(["mcc"], trace.labels, answers)["mcc"] >= full - 0.03


def test_min_speedup_takes_the_best_score_that_is_fast_enough(make_trace: Make) -> None:
    trace = make_trace(1000)
    layers, accuracy, _ = outcome(calibrate(trace, "margin", MinSpeedup(2.0)).policy, trace)
    assert 6 / layers >= 2
    fast = [p for p in sweep(trace, "margin").curves["margin"].points if p.cost.layer_ratio >= 2]
    assert accuracy >= max(point.scores["acc"] for point in fast) - 0.005  # a coarser grid of thresholds


def test_min_speedup_in_macs_counts_lengths(make_trace: Make) -> None:
    trace, shape = make_trace(400), {"hidden": 8, "intermediate": 16, "heads": 2}
    policy = calibrate(trace, "entropy", MinSpeedup(1.5, cost="macs")).policy
    exits = policy.exits(trace.logits)
    each = [
        int(macs(shape, 3, length, exit + 1, exit + 1))
        for length, exit in zip(trace.lengths, exits, strict=True)
    ]
    assert macs(shape, 3, trace.lengths, 6).mean() / np.mean(each) >= 1.5


@pytest.mark.parametrize("rule", ["entropy", "confidence", "patience", "entropy:0,min_layer=2,max_layer=5"])
def test_a_budget_takes_the_best_score_that_it_can_pay_for(rule: str, make_trace: Make) -> None:
    trace = make_trace(1000)
    layers, accuracy, _ = outcome(calibrate(trace, rule, Budget(3.5)).policy, trace)
    assert layers <= 3.5
    (curve,) = sweep(trace, rule).curves.values()
    paid = [point.scores["acc"] for point in curve.points if point.cost.mean_layer <= 3.5]
    assert accuracy >= max(paid) - 0.005  # a coarser grid of thresholds


def test_a_budget_may_be_in_macs(make_trace: Make) -> None:
    trace, shape = make_trace(500, labels=None), {"hidden": 8, "intermediate": 16, "heads": 2}
    exits = calibrate(trace, "entropy", Budget(150_000, cost="macs")).policy.exits(trace.logits)
    each = [
        int(macs(shape, 3, length, exit + 1, exit + 1))
        for length, exit in zip(trace.lengths, exits, strict=True)
    ]
    assert 148_000 < np.mean(each) <= 150_000


def test_a_budget_does_not_pay_for_heads_that_are_not_evaluated(make_trace: Make) -> None:
    trace, shape = make_trace(500, labels=None), {"hidden": 8, "intermediate": 16, "heads": 2}
    policy = calibrate(trace, "entropy:0,min_layer=3", Budget(150_000, cost="macs")).policy
    each = [
        int(macs(shape, 3, length, exit + 1, exit - 1))  # the first two exits are silent
        for length, exit in zip(trace.lengths, policy.exits(trace.logits), strict=True)
    ]
    assert 148_000 < np.mean(each) <= 150_000


def test_a_guarantee_keeps_its_risk_and_certifies_it(make_trace: Make) -> None:
    trace = replace(make_trace(3000), runtime="onnx")
    policy = calibrate(trace, "entropy", Guarantee(0.05, 0.1), chosen_on="other data").policy
    layers, _, risk = outcome(policy, trace)
    assert risk < 0.05
    assert layers < 6
    proof = policy.certificate
    assert proof is not None
    assert proof.observed_risk == pytest.approx(risk)
    conditions = proof.conditions
    assert conditions is not None
    assert conditions.mean_layer == pytest.approx(layers)
    assert conditions.exits == tuple(float(np.mean(policy.exits(trace.logits) == exit)) for exit in range(6))
    expected = {
        "risk": "changed",
        "epsilon": 0.05,
        "delta": 0.1,
        "examples": 3000,
        "data": "made up 0",
        "rules_tried": 1,
    }
    assert {key: getattr(proof, key) for key in expected} == expected
    assert proof.bounds[0].bound == "exact binomial"
    origin = conditions.policy, conditions.fingerprint, conditions.runtime, conditions.rule_chosen_on
    assert origin == (str(policy), "no model", "onnx", "other data")
    assert "0.9" in proof.promise
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_changed_predictions_need_no_labels_and_accuracy_does(make_trace: Make) -> None:
    trace = make_trace(2000)
    blind = replace(trace, labels=None)
    assert (
        calibrate(blind, "entropy", Guarantee(0.05)).policy
        == calibrate(trace, "entropy", Guarantee(0.05)).policy
    )
    with pytest.raises(BadOption, match="labels"):
        calibrate(blind, "entropy", Guarantee(0.05, risk="accuracy"))


def test_accuracy_counts_only_right_answers_that_were_lost(make_trace: Make) -> None:
    trace = make_trace(2000)
    policy = calibrate(trace, "entropy", Guarantee(0.05, risk="accuracy")).policy
    early = policy.decide(trace.logits).logits.argmax(-1) == trace.labels
    full = trace.logits[:, -1].argmax(-1) == trace.labels
    assert policy.certificate.observed_risk == pytest.approx(np.mean(full & ~early))
    layers, _, _ = outcome(policy, trace)
    stricter, _, _ = outcome(calibrate(trace, "entropy", Guarantee(0.05)).policy, trace)
    assert layers < stricter


def test_accuracy_drop_is_net_of_the_answers_that_become_right(make_trace: Make) -> None:
    trace = make_trace(4000)
    policy = calibrate(trace, "entropy", Guarantee(0.03, risk="accuracy_drop")).policy
    layers, accuracy, _ = outcome(policy, trace)
    full = np.mean(trace.logits[:, -1].argmax(-1) == trace.labels)
    assert policy.certificate.observed_risk == pytest.approx(full - accuracy)
    assert policy.certificate.bounds[0].bound == "paired betting"
    assert full - accuracy < 0.03
    assert layers < outcome(calibrate(trace, "entropy", Guarantee(0.03, risk="accuracy")).policy, trace)[0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Guarantee(0.1, risk="missed"), r"is about yes and no; pass decide=\.\.\."),
        (Guarantee(0.1, risk="overlap"), "choose one of changed, accuracy"),
        (Guarantee(0.1, risk="score"), r"needs tolerance=\.\.\."),
        (Guarantee(0.1, by="language"), "has no such categories; collect it again"),
    ],
)
def test_a_target_that_does_not_fit_the_trace_is_refused(
    target: Guarantee, message: str, make_trace: Make
) -> None:
    with pytest.raises(BadOption, match=message):
        calibrate(make_trace(100), "entropy", target)


def test_more_confidence_or_less_risk_never_leaves_earlier(make_trace: Make) -> None:
    trace = make_trace(2000)

    def layers(epsilon: float, delta: float) -> float:
        return outcome(calibrate(trace, "confidence", Guarantee(epsilon, delta)).policy, trace)[0]

    assert layers(0.1, 0.2) <= layers(0.05, 0.2) <= layers(0.05, 0.01)


def test_what_agreement_is_fitted_on_depends_on_the_texts_alone(make_trace: Make) -> None:
    trace = make_trace(1500, texts=np.arange(1500, dtype=np.uint64))
    shuffled = trace[np.random.default_rng(0).permutation(1500)]
    first, second = (calibrate(each, "agreement", Guarantee(0.1)).policy for each in (trace, shuffled))
    np.testing.assert_allclose(first.rule.coefficients, second.rule.coefficients, rtol=1e-3, atol=1e-4)
    assert first.certificate.fitted_on == second.certificate.fitted_on == 500
    assert first.certificate.observed_risk == pytest.approx(second.certificate.observed_risk, abs=2e-3)


CALIBRATED = sorted(name for name, kind in RULES.items() if kind.takes_threshold and name != "rank")


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("rule", CALIBRATED)
def test_the_thresholds_tested_depend_on_the_shape_alone(
    rule: str, problem_type: str, make_trace: Make
) -> None:
    def rungs(seed: int) -> np.ndarray:
        gates = np.random.default_rng(seed).random((50, 6))
        trace = make_trace(50, seed=seed, labels=None, problem=problem_type, gates=gates)
        return threshold_grid(RULES[rule](), trace)

    assert len(rungs(0)) > 1
    np.testing.assert_array_equal(rungs(0), rungs(1))


@pytest.mark.parametrize("rule", CALIBRATED)
def test_only_thresholds_of_the_grid_are_chosen(rule: str, make_trace: Make) -> None:
    trace = make_trace(2000, gates=np.random.default_rng(0).random((2000, 6)))
    policy = calibrate(trace, rule, Guarantee(0.3, risk="accuracy")).policy
    assert policy.threshold in threshold_grid(policy.rule, trace)


def test_the_entropy_grid_is_that_of_one_logit_in_the_lead(make_trace: Make) -> None:
    p = softmax(np.stack([np.linspace(0, 25, 400), np.zeros(400), np.zeros(400)], -1))
    expected = np.sort(-(p * np.log(p)).sum(-1))
    np.testing.assert_allclose(
        threshold_grid(RULES["entropy"](), make_trace(5)), expected, rtol=1e-3, atol=1e-12
    )


@pytest.mark.parametrize("rule", ["entropy", "confidence", "margin"])
def test_calibrated_thresholds_are_short_enough_to_read(rule: str, make_trace: Make) -> None:
    policy = calibrate(make_trace(2000), rule, Guarantee(0.3, risk="accuracy")).policy
    assert len(f"{policy.threshold:g}".lstrip("0.")) <= 6
    assert float(f"{policy.threshold:.6g}") == policy.threshold


def test_regression_agrees_within_a_tolerance(make_trace: Make) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=1500)
    logits = (truth[:, None] + rng.normal(size=(1500, 4)) * [0.5, 0.1, 0.05, 0.02])[..., None]
    trace = make_trace(1500, exits=4, classes=1, labels=truth, problem="regression", metrics=())
    trace = replace(trace, logits=logits.astype(np.float32))
    rule = "patience:1,tolerance=0.2"
    with pytest.raises(BadOption, match="tolerance"):
        calibrate(trace, rule, Guarantee(0.05))
    policy = calibrate(trace, rule, Guarantee(0.05, tolerance=0.4)).policy
    given = policy.decide(trace.logits).logits[:, 0]
    assert np.mean(np.abs(given - trace.logits[:, -1, 0]) > 0.4) == policy.certificate.observed_risk < 0.05


def test_many_labels_lose_accuracy_by_the_share(make_trace: Make) -> None:
    rng = np.random.default_rng(0)
    trace = make_trace(2000, problem="multi_label_classification", labels=rng.integers(2, size=(2000, 3)))
    policy = calibrate(trace, "confidence", Guarantee(0.1, risk="accuracy")).policy
    assert policy.certificate.bounds[0].bound == "betting"  # whatever the losses happen to be
    assert (
        calibrate(trace, "confidence", Guarantee(0.2)).policy.certificate.bounds[0].bound == "exact binomial"
    )
    early = policy.decide(trace.logits, problem_type=trace.problem).logits > 0
    lost = ((trace.logits[:, -1] > 0) == trace.labels) & (early != trace.labels)
    assert policy.certificate.observed_risk == pytest.approx(lost.mean())


@pytest.mark.parametrize("risk", ["changed", "accuracy"])
def test_bounds_by_class_hold_for_the_examples_of_each_class(risk: str, make_trace: Make) -> None:
    trace = make_trace(4000, label_names=("ham", "spam", "news"))
    policy = calibrate(
        trace, "entropy", Guarantee({"ham": 0.05, "1": 0.02, "news": 0.05}, 0.1, risk=risk)
    ).policy
    answers, full = policy.decide(trace.logits).logits.argmax(-1), trace.logits[:, -1].argmax(-1)
    lost = answers != full if risk == "changed" else (full == trace.labels) & (answers != trace.labels)
    belongs = full if risk == "changed" else trace.labels
    for index, (name, epsilon) in enumerate({"ham": 0.05, "spam": 0.02, "news": 0.05}.items()):
        (seen,) = (bound for bound in policy.certificate.bounds if bound.group == name)
        assert seen.examples == np.sum(belongs == index)
        assert seen.observed_risk == pytest.approx(lost[belongs == index].mean())
        assert seen.observed_risk <= epsilon
        assert repr(name) in policy.certificate.promise
    loose = calibrate(trace, "entropy", Guarantee(0.05, 0.1, risk=risk)).policy
    assert outcome(loose, trace)[0] < outcome(policy, trace)[0] < 6


def test_a_rare_class_that_the_first_exit_never_answers_is_not_given_up(make_trace: Make) -> None:
    """The first exit says ham whatever it sees; nine of ten examples are."""
    trace = make_trace(4000, exits=2, classes=2, label_names=("ham", "spam"))
    ham = np.arange(4000) % 10 > 0
    logits = np.array([[[3.0, 0.0], [0.0, 3.0]], [[3.0, 0.0], [3.0, 0.0]]], np.float32)[ham.astype(int)]
    trace = replace(trace, logits=logits, labels=1 - ham)
    assert outcome(calibrate(trace, "entropy", Guarantee(0.12)).policy, trace)[0] == 1
    with pytest.raises(NoSafeThreshold, match=r"the class 'spam'.*shows a risk of 1.0"):
        calibrate(trace, "entropy", Guarantee({"spam": 0.02, "ham": 0.12}))


@pytest.mark.parametrize(
    ("bounds", "error", "advice"),
    [
        ({"0": 0.1, "1": 0.1, "spam": 0.1}, UnknownName, "available: 0, 1, 2"),
        ({"0": 0.1, "1": 0.1, "3": 0.1}, UnknownName, "available: 0, 1, 2"),
        ({"0": 0.1, "1": 0.1, "01": 0.1}, UnknownName, "twice"),
        ({"0": 0.1, "2": 0.1}, BadOption, "no bound for 1"),
    ],
)
def test_bounds_that_leave_a_class_out_or_name_none_are_refused(
    bounds: dict[str, float], error: type[Exception], advice: str, make_trace: Make
) -> None:
    with pytest.raises(error, match=advice):
        calibrate(make_trace(100), "entropy", Guarantee(bounds))


def test_classes_whose_names_are_numbers_are_bound_by_name(make_trace: Make) -> None:
    trace = make_trace(3000, label_names=("1", "2", "0"))
    policy = calibrate(trace, "entropy", Guarantee({"0": 0.02, "1": 0.1, "2": 0.1})).policy
    assert policy.certificate.bounds[2].group == "0"
    assert policy.certificate.bounds[2].examples == np.sum(trace.logits[:, -1].argmax(-1) == 2)


def test_no_safe_threshold_raises_with_the_examples_needed(make_trace: Make) -> None:
    with pytest.raises(NoSafeThreshold, match="even with no errors it takes 299") as too_few:
        calibrate(make_trace(100), "confidence", Guarantee(0.01, 0.05))
    assert too_few.value.examples_needed >= 299
    assert not too_few.value.group

    trace = sure_and_wrong(make_trace(2000, exits=2))
    with pytest.raises(NoSafeThreshold, match="More examples would not help") as hopeless:
        calibrate(trace, "patience_confidence:1,confidence=0.4", Guarantee(0.05))
    assert hopeless.value.examples_needed is None


def sure_and_wrong(trace: Trace) -> Trace:
    """The first exit says the opposite of the last."""
    return replace(trace, logits=trace.logits[:, [1, 1]] * np.array([-1, 1], np.float32)[:, None])


def test_the_examples_needed_without_errors_are_told_even_where_there_are_errors(make_trace: Make) -> None:
    trace = sure_and_wrong(make_trace(50, exits=2))
    with pytest.raises(NoSafeThreshold, match="takes 299") as few_and_wrong:
        calibrate(trace, "patience_confidence:1,confidence=0.4", Guarantee(0.01))
    assert few_and_wrong.value.examples_needed == 299


def test_the_examples_needed_are_those_of_the_class_that_lacks_them(make_trace: Make) -> None:
    trace = make_trace(600, label_names=("ham", "spam", "news"))
    full = trace.logits[:, -1].argmax(-1)
    trace = trace[(full != 1) | (np.arange(600) < 30)]
    rare = int(np.sum(trace.logits[:, -1].argmax(-1) == 1))
    with pytest.raises(NoSafeThreshold, match=f"{rare} examples of the class 'spam' .* takes 59") as too_few:
        calibrate(trace, "confidence", Guarantee({"ham": 0.5, "spam": 0.05, "news": 0.5}))
    assert too_few.value.group == "spam"
    assert too_few.value.examples_needed >= 59
    with pytest.raises(NoSafeThreshold, match="0 examples of the class 'spam'"):
        calibrate(
            trace[trace.logits[:, -1].argmax(-1) != 1],
            "confidence",
            Guarantee(dict.fromkeys(["ham", "spam", "news"], 0.2)),
        )


def test_the_examples_needed_for_many_labels_are_those_of_their_own_bound(make_trace: Make) -> None:
    logits = np.full((40, 2, 3), 3.0, np.float32)
    logits[0, 0, 0] = -3  # the first exit is wrong about one label of 120
    trace = make_trace(40, exits=2, problem="multi_label_classification", labels=np.ones((40, 3), int))
    with pytest.raises(NoSafeThreshold) as too_few:
        calibrate(replace(trace, logits=logits), "confidence", Guarantee(0.04, risk="accuracy"))
    losses = [1 / 3] + [0] * 39
    needed = betting_examples(losses, 0.04, 0.05)
    assert too_few.value.examples_needed == needed != binomial_examples(losses, 0.04, 0.05)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 0.4999999])
def test_a_bound_out_of_reach_is_refused_and_does_not_crash(epsilon: float, make_trace: Make) -> None:
    with pytest.raises(NoSafeThreshold):
        calibrate(make_trace(4, exits=2), "confidence", Guarantee(epsilon, 0.05))


def test_a_rule_that_never_leaves_is_not_certified(make_trace: Make) -> None:
    trace = make_trace(500, classes=1, problem="regression", labels=None, metrics=())
    with pytest.raises(NoSafeThreshold, match="lets any example exit early"):
        calibrate(trace, "patience:1,tolerance=0", Guarantee(0.1, tolerance=0.5))
    with pytest.raises(NoSafeThreshold, match="lets any example exit early"):
        calibrate(make_trace(500, exits=1), "entropy", MaxLoss(1.0))


def test_no_threshold_for_a_loss_a_ratio_or_a_budget_raises(make_trace: Make) -> None:
    trace = make_trace(500)
    flipped = np.stack([-trace.logits[:, -1], trace.logits[:, -1]], axis=1)
    wrong = replace(trace, logits=flipped, layers=(1, 2), shape={})
    with pytest.raises(NoSafeThreshold, match="smallest loss"):
        calibrate(wrong, "layer", MaxLoss(1.0))
    with pytest.raises(NoSafeThreshold, match="the most is"):
        calibrate(trace, "patience", MinSpeedup(5.0))
    with pytest.raises(NoSafeThreshold, match=r"a mean of 1\.5 layers"):
        calibrate(trace, "patience", Budget(1.5))


def test_several_rules_share_delta_and_the_one_that_leaves_earliest_wins(make_trace: Make) -> None:
    trace = make_trace(2000)
    rules = ["patience", "entropy", "confidence"]
    best = calibrate(trace, rules, Guarantee(0.05, 0.1)).policy
    assert best.certificate.rules_tried == 3
    assert best.certificate.delta == 0.1
    alone = {
        rule: outcome(calibrate(trace, rule, Guarantee(0.05, 0.1 / 3)).policy, trace)[0] for rule in rules
    }
    assert outcome(best, trace)[0] == min(alone.values())


@pytest.mark.parametrize("rule", [None, "agreement"])
@pytest.mark.parametrize("target", [Guarantee(0.1), MaxLoss(2.0), MinSpeedup(1.5), Budget(4.0)])
def test_every_target_takes_the_default_rules_and_a_rule_that_learns(
    target: Target, rule: str | None, make_trace: Make
) -> None:
    trace = make_trace(900)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedData)
        policy = calibrate(trace, rule, target).policy
    assert outcome(policy, trace)[0] < 6


@pytest.mark.parametrize("target", [MaxLoss(2.0), MinSpeedup(1.5), Budget(4.0)])
def test_choosing_a_rule_by_the_data_that_sets_its_threshold_warns(target: Target, make_trace: Make) -> None:
    with pytest.warns(ReusedData, match="one of 2 rules"):
        calibrate(make_trace(500), ["entropy", "patience"], target)


def test_calibrating_on_examples_that_chose_the_rule_warns(make_trace: Make) -> None:
    trace = make_trace(3000)
    first, second = trace[:1500], trace[1000:]
    with pytest.warns(ReusedData, match="the rule was chosen on 'made up 0'"):
        policy = calibrate(second, "entropy", Guarantee(0.05), chosen_on=first).policy
    assert policy.certificate.conditions.rule_chosen_on == "made up 0"
    calibrate(trace[1500:], "entropy", Guarantee(0.05), chosen_on=first)  # the same data, other examples
    calibrate(make_trace(3000, seed=1), "entropy", Guarantee(0.05), chosen_on=first)  # the same row numbers


def test_examples_of_data_without_a_name_are_told_apart_by_their_model(make_trace: Make) -> None:
    trace = make_trace(2000, data="")
    with pytest.warns(ReusedData):
        calibrate(trace, "entropy", Guarantee(0.05), chosen_on=trace)
    calibrate(trace, "entropy", Guarantee(0.05), chosen_on=replace(trace, fingerprint="another"))


def test_calibrating_on_the_data_that_chose_the_rule_warns(make_trace: Make) -> None:
    trace = make_trace(2000)
    with pytest.warns(ReusedData, match="made up 0"):
        policy = calibrate(trace, "entropy", Guarantee(0.05), chosen_on=trace.data).policy
    assert policy.certificate.conditions.rule_chosen_on == trace.data == policy.certificate.data


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxLoss(-1),
        lambda: MinSpeedup(0.5),
        lambda: MinSpeedup(2, cost="watts"),
        lambda: Budget(0),
        lambda: Guarantee(0),
        lambda: Guarantee({}),
        lambda: Guarantee(0.1, delta=1.0),
        lambda: Guarantee(0.1, risk="f1"),
        lambda: Guarantee({"spam": 0.1, "ham": 1.5}),
        lambda: Guarantee(0.1, tolerance=-0.1),
        lambda: Guarantee(0.1, tolerance=float("nan")),
    ],
)
def test_an_impossible_target_is_refused(make: Callable[[], Target]) -> None:
    with pytest.raises(BadOption):
        make()


def test_what_cannot_be_calibrated_raises(make_trace: Make) -> None:
    with pytest.raises(BadOption, match="no threshold to calibrate"):
        calibrate(make_trace(10), "never", MaxLoss(1.0))
    with pytest.raises(BadOption, match="is empty"):
        calibrate(make_trace(0), "entropy", MaxLoss(1.0))
    with pytest.raises(BadOption, match="at least one rule"):
        calibrate(make_trace(10), [], MaxLoss(1.0))
    with pytest.raises(BadOption, match="a tolerance is for numbers"):
        calibrate(make_trace(10), "entropy", Guarantee(0.1, tolerance=0.1))
    with pytest.raises(BadOption, match="not scored by 'f1'"):
        calibrate(make_trace(10), "entropy", MaxLoss(1.0, metric="f1"))
    with pytest.raises(BadOption, match="shape"):
        calibrate(make_trace(10, shape={}), "entropy", MinSpeedup(2.0, cost="macs"))
    with pytest.raises(BadOption, match="shape"):
        calibrate(make_trace(10, shape={}), "entropy", Budget(2.0, cost="macs"))
