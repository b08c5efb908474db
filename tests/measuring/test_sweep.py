"""Every point of a sweep equals running its policy."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from offramp.data.metrics import compute
from offramp.errors import BadOption, BadPolicy
from offramp.measuring import exit_table, sweep
from offramp.measuring.cost import macs
from offramp.measuring.exit_table import fit_rule
from offramp.policy import Policy, fold
from offramp.problems import MULTI_LABEL, SINGLE_LABEL
from offramp.rules.agreement import Agreement
from offramp.trace import Trace

Make = Callable[..., Trace]

RULES = [
    "entropy",
    "entropy:0.3,normalized=true",
    "confidence",
    "margin",
    "min_probability",
    "patience",
    "window:2,shape=monotone,entropy=0.05",
    "patience_confidence",
    "ensemble",
    "entropy:0,min_layer=2,max_layer=4",
    "layer",
    "never",
]


@pytest.mark.parametrize("rule", RULES)
def test_every_point_equals_running_its_policy(rule: str, make_trace: Make) -> None:
    trace = make_trace(80, metrics=("acc", "macro_f1", "mcc"))
    curve = sweep(trace, rule, points=12).curves[rule]
    for point in curve.points:
        done = curve.policy(point).decide(trace.logits, layers=trace.layers)
        assert point.exits == tuple(np.bincount(done.exits, minlength=6))
        predictions = done.logits.argmax(-1)
        expected = compute(["acc", "macro_f1", "mcc"], trace.labels, predictions)
        expected["agreement"] = np.mean(predictions == trace.logits[:, -1].argmax(-1))
        assert point.scores == pytest.approx(expected)
        assert point.cost.mean_layer == pytest.approx(np.mean(done.exits + 1))


def test_no_example_is_scored_by_a_rule_that_was_fitted_on_it(
    make_trace: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, fits = make_trace(300), []

    def fit_and_record(policy: Policy, part: Trace) -> Policy:
        fits.append(part.ids)
        return fit_rule(policy, part)

    monkeypatch.setattr(exit_table, "fit_rule", fit_and_record)
    readiness = exit_table.apply_rule(trace, Policy.parse("agreement:0"), seed=5).readiness
    assert sorted(np.concatenate(fits)) == trace.ids.tolist()
    assert len(fits) == 2
    for rows, others in (fits, fits[::-1]):
        rule = Agreement.fit(trace[others])
        np.testing.assert_allclose(readiness[rows], fold(rule, trace.logits[rows]).readiness)


def test_a_curve_of_a_rule_that_learns_gives_policies_fitted_on_the_whole_trace(make_trace: Make) -> None:
    trace = make_trace(300)
    curve = sweep(trace, "agreement", points=20).curves["agreement"]
    assert (curve.points[0].cost.mean_layer, curve.points[-1].cost.mean_layer) == (1, 6)
    point = curve.points[10]
    assert curve.policy(point) == Policy(Agreement.fit(trace), point.threshold)
    layers = curve.policy(point).exits(trace.logits).mean() + 1
    assert layers == pytest.approx(point.cost.mean_layer, abs=0.4)


def test_in_regression_a_rule_that_learns_needs_a_tolerance(make_trace: Make) -> None:
    truth = np.random.default_rng(0).normal(size=200)
    trace = make_trace(200, classes=1, labels=truth, problem="regression", metrics=())
    rule = "agreement:0,tolerance=0.5"
    curve = sweep(trace, rule, points=5).curves[rule]
    assert curve.policy(curve.points[1]).rule == Agreement.fit(trace, tolerance=0.5)
    with pytest.raises(BadOption, match="agreement:0,tolerance="):
        sweep(trace, "agreement")


def test_a_policy_is_swept_like_its_text(make_trace: Make) -> None:
    trace, policy = make_trace(100), Policy.parse("entropy:0.3,min_layer=2")
    text = str(policy)
    assert sweep(trace, policy).curves == sweep(trace, text).curves
    fitted = Policy(Agreement.fit(make_trace(200, seed=1)), 0.9)
    curve = sweep(trace, [policy, fitted], {str(fitted): [0.5, 0.8]}).curves["agreement:0.9"]
    for point in curve.points:
        done = curve.policy(point).decide(trace.logits)
        assert curve.policy(point).rule == fitted.rule
        assert point.exits == tuple(np.bincount(done.exits, minlength=6))


def test_a_gate_is_swept_by_gate_scores(make_trace: Make) -> None:
    gates = np.random.default_rng(1).random((40, 6))
    trace = make_trace(40, gates=gates)
    for point in sweep(trace, "gate", [0.2, 0.8]).curves["gate"].points:
        taken = np.where(gates > point.threshold, np.arange(6), 5).min(1)
        assert point.exits == tuple(np.bincount(taken, minlength=6))


def test_non_finite_logits_leave_last_and_are_counted(make_trace: Make) -> None:
    trace = make_trace(30)
    logits = trace.logits.copy()
    logits[0, :5, 0] = np.nan
    found = sweep(replace(trace, logits=logits), "confidence", [0.0])
    assert found.not_finite == 1
    assert found.curves["confidence"].points[0].exits == (29, 0, 0, 0, 0, 1)


def test_auto_thresholds_reach_from_the_first_exit_to_full_depth(make_trace: Make) -> None:
    trace = make_trace(500)
    for rule, curve in sweep(
        trace, ["entropy", "confidence", "margin", "ensemble"], points=20
    ).curves.items():
        assert curve.points[0].cost.mean_layer == 1, rule
        assert curve.points[-1].cost.mean_layer == 6, rule
        assert 10 < len(curve.points) <= 20, rule
        layers = [point.cost.mean_layer for point in curve.points]
        assert layers == sorted(layers), rule


@pytest.mark.parametrize("seed", range(5))
def test_sampled_auto_thresholds_reach_both_ends(
    seed: int, make_trace: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_table, "SAMPLE", 20)
    found = sweep(make_trace(1001, seed=seed), ["entropy", "confidence", "min_probability"], points=20)
    for curve in found.curves.values():
        assert curve.points[0].cost.mean_layer == 1
        assert curve.points[-1].cost.mean_layer == 6


def test_a_rule_that_counts_exits_gets_every_threshold(make_trace: Make) -> None:
    thresholds = [point.threshold for point in sweep(make_trace(200), "patience").curves["patience"].points]
    assert thresholds == [1, 2, 3, 4, 5]


def test_macs_are_the_mean_over_examples(make_trace: Make) -> None:
    trace, shape = make_trace(50), {"hidden": 8, "intermediate": 16, "heads": 2}
    found = sweep(trace, ["entropy", "layer"], {"entropy": [0.4]})
    exits = Policy.parse("entropy:0.4").exits(trace.logits)
    each = [
        int(macs(shape, 3, length, exit + 1, heads=exit + 1))
        for length, exit in zip(trace.lengths, exits, strict=True)
    ]
    assert found.curves["entropy"].points[0].cost.macs == pytest.approx(np.mean(each))
    assert found.full.cost.macs == pytest.approx(macs(shape, 3, trace.lengths, 6).mean())
    for rule in ("entropy:0,min_layer=4", "never", "layer"):
        point = sweep(trace, rule, padded_to=128).curves[rule].points[-1]
        heads = 3 if "min_layer" in rule else 1  # evaluated on the way to the last exit
        assert point.cost.macs == macs(shape, 3, 128, 6, heads), rule
    padded = sweep(trace, "layer", padded_to=128).full.cost.macs
    assert padded == macs(shape, 3, 128, 6)
    bare = replace(trace, shape={**trace.shape, "pooler": 0})
    assert sweep(bare, "layer", padded_to=128).full.cost.macs == padded - 8 * 8


def test_per_exit_scores_equal_those_of_each_exit(make_trace: Make) -> None:
    trace = make_trace(100, layers=(2, 4, 6, 8, 10, 12))
    found = sweep(trace, "never")
    assert [point.threshold for point in found.per_exit] == [2, 4, 6, 8, 10, 12]
    for exit, point in enumerate(found.per_exit):
        assert point.scores["acc"] == np.mean(trace.logits[:, exit].argmax(-1) == trace.labels)
    assert found.full.scores == found.curves["never"].points[0].scores


def test_the_oracle_stays_off_the_front(make_trace: Make) -> None:
    found = sweep(make_trace(300), ["entropy", "patience", "oracle"])
    assert {rule for rule, _ in found.front()} <= {"entropy", "patience"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("metric", ["acc", "micro_f1"])
@pytest.mark.parametrize("problem_type", [SINGLE_LABEL, MULTI_LABEL])
def test_no_rule_beats_the_oracle_in_score_or_in_layers_for_the_same_score(
    problem_type: str, metric: str, seed: int, make_trace: Make
) -> None:
    rng, classes = np.random.default_rng(seed), 8
    labels = rng.integers(classes, size=40)
    right = np.eye(classes)[labels]
    if problem_type == MULTI_LABEL:
        labels = right = (rng.random((40, classes)) < 0.3).astype(int)
    # later exits know less, so full depth is not the best that examples can get
    logits = (
        rng.normal(size=(40, 4, classes)) + (right - 0.5)[:, None] * np.array([2.0, 2.0, 1.0, 0.0])[:, None]
    )
    trace = make_trace(40, exits=4, classes=classes, labels=labels, problem=problem_type, metrics=(metric,))
    trace = replace(trace, logits=logits.astype(np.float32))
    rules = ["entropy", "confidence", "patience", "window:2,shape=side", "layer"]
    found = sweep(trace, [*rules, "oracle"], points=10)
    oracle = found.curves["oracle"].points[0]
    for rule in rules:
        for point in found.curves[rule].points:
            assert found.score(point) <= found.score(oracle) + 1e-12
            if found.score(point) >= found.score(oracle) - 1e-12:
                assert point.cost.mean_layer >= oracle.cost.mean_layer


@pytest.mark.parametrize("metric", ["acc", "micro_f1"])
def test_the_oracle_finds_the_best_of_all_choices_of_exits(metric: str, make_trace: Make) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        trace = make_trace(
            5, exits=3, labels=rng.integers(2, size=(5, 3)), problem=MULTI_LABEL, metrics=(metric,)
        )
        trace = replace(trace, logits=rng.normal(size=(5, 3, 3)).astype(np.float32))
        scores = [
            compute([metric], trace.labels, trace.logits[np.arange(5), exits] > 0)[metric]
            for exits in product(range(3), repeat=5)
        ]
        assert sweep(trace, "oracle").curves["oracle"].points[0].scores[metric] == pytest.approx(max(scores))


def test_the_front_has_exactly_the_points_that_no_other_beats(make_trace: Make) -> None:
    found = sweep(make_trace(300), ["entropy", "patience", "layer"], points=15)
    points = [(p.cost.mean_layer, p.scores["acc"]) for curve in found.curves.values() for p in curve.points]
    best = {
        (layer, score)
        for layer, score in points
        if not any(a <= layer and b >= score and (a, b) != (layer, score) for a, b in points)
    }
    assert {(point.cost.mean_layer, point.scores["acc"]) for _, point in found.front()} == best


def test_the_area_is_the_mean_score_over_budgets(make_trace: Make) -> None:
    found = sweep(make_trace(300), ["layer", "never", "entropy"])
    accuracy = [point.scores["acc"] for point in found.per_exit]
    assert found.area("layer") == pytest.approx(np.trapezoid(accuracy) / 5)
    assert found.area("never") == pytest.approx((accuracy[0] + accuracy[-1]) / 2)
    assert found.area("entropy") > found.area("layer") > found.area("never")


def test_intervals_contain_the_score_and_shrink_with_more_examples(make_trace: Make) -> None:
    def width(examples: int) -> float:
        point = sweep(make_trace(examples), "never", bootstrap=300).full
        low, high = point.interval
        assert low <= point.scores["acc"] <= high
        return high - low

    accuracy = sweep(make_trace(400), "never").full.scores["acc"]
    assert width(400) == pytest.approx(2 * 1.96 * np.sqrt(accuracy * (1 - accuracy) / 400), rel=0.2)
    assert width(6400) == pytest.approx(width(400) / 4, rel=0.3)


def test_regression_is_scored_from_predictions(make_trace: Make) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=60)
    logits = (truth[:, None] + rng.normal(size=(60, 4)) / [1, 2, 4, 8])[..., None].astype(np.float32)
    metrics = ("pearson", "spearmanr")
    trace = make_trace(60, exits=4, classes=1, labels=truth, problem="regression", metrics=metrics)
    rule = "patience:1,tolerance=0.3"
    curve = sweep(replace(trace, logits=logits), rule, bootstrap=20).curves[rule]
    for point in curve.points:
        done = curve.policy(point).decide(logits)
        assert point.scores == pytest.approx(compute(["pearson", "spearmanr"], truth, done.logits[:, 0]))
        assert point.interval[0] <= point.scores["pearson"] <= point.interval[1]


def test_many_labels_are_scored_from_predictions(make_trace: Make) -> None:
    rng = np.random.default_rng(0)
    trace = make_trace(
        50, labels=rng.integers(2, size=(50, 3)), problem="multi_label_classification", metrics=()
    )
    curve = sweep(trace, "confidence", points=5, bootstrap=10).curves["confidence"]
    for point in curve.points:
        done = curve.policy(point).decide(trace.logits, problem_type=trace.problem)
        assert point.exits == tuple(np.bincount(done.exits, minlength=6))
        predictions = done.logits > 0
        assert point.scores["micro_f1"] == pytest.approx(
            compute(["micro_f1"], trace.labels, predictions)["micro_f1"]
        )
        assert point.scores["agreement"] == np.mean((predictions == (trace.logits[:, -1] > 0)).all(-1))


def test_without_labels_the_score_is_agreement_with_full_depth(make_trace: Make) -> None:
    found = sweep(make_trace(100, labels=None), "entropy", bootstrap=20)
    assert found.metrics == ("agreement",)
    assert found.full.scores == {"agreement": 1.0}
    assert found.curves["entropy"].points[0].interval is not None


@pytest.mark.parametrize("metric", ["acc", "macro_f1", "mcc"])
def test_thousands_of_classes_are_scored(metric: str, make_trace: Make) -> None:
    trace = make_trace(20, exits=2, classes=2_000, metrics=(metric,))
    found = sweep(trace, "confidence", points=15, bootstrap=10).full
    predictions = trace.logits[:, -1].argmax(-1)
    assert found.scores[metric] == pytest.approx(compute([metric], trace.labels, predictions)[metric])
    assert found.interval[0] <= found.interval[1]


@pytest.mark.parametrize("metric", ["acc", "macro_f1", "mcc"])
def test_intervals_from_counts_equal_those_of_drawn_examples(metric: str, make_trace: Make) -> None:
    trace = make_trace(300, classes=5, metrics=(metric,))
    predictions, rng = trace.logits[:, -1].argmax(-1), np.random.default_rng(1)
    draws = [rng.integers(300, size=300) for _ in range(2000)]
    scores = [compute([metric], trace.labels[rows], predictions[rows])[metric] for rows in draws]
    found = sweep(trace, "never", bootstrap=2000).full.interval
    assert found == pytest.approx(np.quantile(scores, [0.025, 0.975]), abs=0.012)


def test_what_cannot_be_swept_is_refused(make_trace: Make) -> None:
    trace = make_trace(20)
    with pytest.raises(BadOption, match="no examples"):
        sweep(make_trace(0), "entropy")
    with pytest.raises(BadOption, match="oracle needs labels"):
        sweep(make_trace(20, labels=None), "oracle")
    with pytest.raises(BadOption, match="labelled data"):
        sweep(make_trace(20, classes=1, labels=None, problem="regression"), "patience")
    with pytest.raises(BadOption, match="macro_f1"):
        sweep(make_trace(20, metrics=("f1",)), "entropy")
    with pytest.raises(BadOption, match="auto"):
        sweep(trace, "entropy", "all")
    with pytest.raises(BadOption, match="did you mean entropy"):
        sweep(trace, "entropy", {"entropi": [0.1]})
    with pytest.raises(BadPolicy, match="entropy"):
        sweep(trace, "entropi")
