"""The audit counts as calibration does, rarely calls a valid certificate broken, and soon finds a broken one."""

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import make_certificate
from scipy.stats import binom

from offramp.guarantees import Conditions
from offramp.guarantees.operating_point import OperatingPoint
from offramp.inference import Prediction
from offramp.inference.prediction import predictions
from offramp.measuring import Guarantee, calibrate
from offramp.policy import Decision, Policy
from offramp.runtimes import Tokens
from offramp.serve.audit import BLOCK, DRIFT_LIMIT, DRIFT_MINIMUM, DRIFT_WINDOW, Audit, Run, RungReport
from offramp.trace import Trace

Make = Callable[..., Trace]


def ready(predict: Callable[[Tokens], Prediction]) -> Run:
    """A reference whose predictions take no time."""

    def run(tokens: Sequence[Tokens]) -> Generator[None, None, list[Prediction]]:
        yield from ()
        return [predict(each) for each in tokens]

    return run


LAYERS = (1, 2, 3, 4)
DELTA = 0.1


PROOF: dict[str, Any] = {"epsilon": 0.05, "examples": 100, "observed_risk": 0.0, "conditions": None}


def certified(text: str = "entropy:0.2", **fields: Any) -> Policy:
    return replace(Policy.parse(text), certificate=make_certificate(**PROOF | fields))


def answer(label: str | None = "yes", layer: int = 1, score: float = 0.9) -> Prediction:
    chances = {} if label is None else {"yes": 0.5, "no": 0.5}
    return Prediction(label, score, chances, layer, LAYERS[-1])


def run(audit: Audit, differs: list[bool], full: str = "yes") -> list[int]:
    """After how many predictions the rung broke, each time it did."""
    broken, tokens, truth = [], Tokens([1]), answer(full, layer=4)
    same, other = answer(full), answer("no" if full == "yes" else "yes")
    for seen, different in enumerate(differs, 1):
        audit.offer(0, [tokens], [other if different else same])
        if audit.examine(ready(lambda _: truth)) is not None:
            broken.append(seen)
    return broken


def drawn(rate: float, number: int, seed: int) -> list[bool]:
    draw = random.Random(seed)
    return [draw.random() < rate for _ in range(number)]


def report(audit: Audit) -> RungReport:
    [only] = audit.reports()
    return only


def test_predictions_that_there_was_no_time_to_compare_are_counted() -> None:
    audit = Audit([certified()], LAYERS, share=1.0, keep=3)
    for _ in range(5):
        audit.offer(0, [Tokens([1])], [answer()])
    assert (report(audit).dropped, audit.pending) == (2, 3)


def test_copies_of_a_text_in_one_request_count_once() -> None:
    audit = Audit([certified()], LAYERS, share=0.5)
    audit.offer(0, [Tokens([1])] * 100, [answer("no")] * 100)
    assert audit.pending == 1
    assert audit.examine(ready(lambda _: answer("yes", layer=4))) is None
    assert report(audit).verdict == "open"
    assert sum(report(audit).exits) == 100


def test_clients_cannot_know_which_predictions_are_kept() -> None:
    def kept() -> list[int]:
        audit = Audit([certified()], LAYERS, share=0.5)
        for row in range(100):
            audit.offer(0, [Tokens([row])], [answer()])
        rows: list[int] = []
        while audit.pending:
            audit.examine(ready(lambda tokens: rows.append(tokens.ids[0]) or answer()))  # type: ignore[func-returns-value]
        return rows

    assert kept() != kept()


def test_a_certificate_that_holds_is_called_broken_no_more_often_than_delta() -> None:
    runs = 200
    broken = [
        run(Audit([certified()], LAYERS, share=1, delta=DELTA), drawn(0.05, 2000, seed))
        for seed in range(runs)
    ]
    assert sum(map(bool, broken)) <= binom.ppf(0.999, runs, DELTA)


def test_three_times_the_disagreement_is_found_within_hundreds() -> None:
    found = [run(Audit([certified()], LAYERS, share=1), drawn(0.15, 500, seed)) for seed in range(40)]
    assert sum(map(bool, found)) >= 38
    assert all(len(each) <= 1 for each in found)  # reported once


def test_a_long_good_past_does_not_hide_a_change() -> None:
    audit = Audit([certified()], LAYERS, share=1)
    assert run(audit, drawn(0.01, 20 * BLOCK, 0)) == []
    assert report(audit).verdict == "holds"
    assert run(audit, drawn(0.15, BLOCK, 1))
    now = report(audit)
    assert now.verdict == "broken"
    assert now.upper < 0.05  # over all predictions it still holds


def problem(make_trace: Make, kind: str) -> tuple[Trace, Guarantee, str]:
    if kind == "regression":
        rng = np.random.default_rng(3)
        logits = rng.normal(0, 1, (500, 1, 1)) + rng.normal(0, 0.3, (500, 4, 1)) / np.arange(1, 5)[:, None]
        rows = np.arange(500)
        trace = Trace(logits.astype(np.float32), LAYERS, None, rows + 1, rows, problem=kind)
        return trace, Guarantee(0.2, tolerance=0.3), "patience"
    made = make_trace(500, exits=4, seed=2, label_names=("a", "b", "c"))
    if kind == "multi_label_classification":
        labels = np.random.default_rng(0).integers(2, size=(500, 3))
        return replace(made, problem=kind, labels=labels, metrics=()), Guarantee(0.3), "confidence"
    if ">=" in kind:
        return replace(made, decide=kind), Guarantee(0.3), "entropy"
    return made, Guarantee({"a": 0.2, "1": 0.3, "c": 0.2} if kind == "by class" else 0.2), "ensemble"


@pytest.mark.parametrize(
    "kind",
    [
        "single_label_classification",
        "by class",
        "multi_label_classification",
        "regression",
        "a>=0.7",
        "a>=0.6,c>=0.2",
    ],
)
def test_the_audit_counts_what_calibration_counts(make_trace: Make, kind: str) -> None:
    trace, target, rule = problem(make_trace, kind)
    policy = calibrate(trace, "patience:1,tolerance=0.3" if rule == "patience" else rule, target).policy
    info = SimpleNamespace(
        labels=trace.label_names or ("0", "1", "2")[: trace.logits.shape[-1]],
        problem=trace.problem,
        exits=trace.layers,
        decisions=OperatingPoint.parse(trace.decide).decisions(trace.problem, trace.label_names),
    )
    runtime: Any = SimpleNamespace(info=info)
    given = predictions(policy.decide(trace.logits, None, trace.layers, info.decisions), runtime)
    last = Decision(np.full(len(trace), 3), trace.logits[:, -1], np.ones(len(trace), bool))
    full = [*predictions(last, runtime)]
    audit = Audit([policy], trace.layers, share=1, keep=len(trace))
    for row, prediction in enumerate(given):
        audit.offer(0, [Tokens([row])], [prediction])
    while audit.pending:
        assert audit.examine(ready(lambda tokens: full[tokens.ids[0]])) is None
    found, proof = report(audit), policy.certificate
    assert proof is not None
    assert found.examined == len(trace)
    changed = sum(bound.examples * bound.observed_risk for bound in proof.bounds)
    assert found.disagreed == pytest.approx(changed)
    assert 0 < found.lower < changed / found.examined < found.upper
    assert found.drift == pytest.approx(0, abs=1e-9)
    for bound in proof.bounds:
        if bound.group:
            low, high = found.by_class[bound.group]
            assert low < bound.observed_risk < high


def test_a_bound_of_one_class_is_broken_by_that_class_alone() -> None:
    policy = certified(epsilon={"no": 0.05, "yes": 0.5})
    assert not run(Audit([policy], LAYERS, share=1), drawn(0.2, 500, 0), full="yes")
    assert run(Audit([policy], LAYERS, share=1), drawn(0.2, 500, 0), full="no")


def test_few_differences_prove_an_accuracy_certificate_and_none_disprove_it() -> None:
    audit = Audit([certified(risk="accuracy")], LAYERS, share=1)
    assert run(audit, drawn(0.01, 500, 0)) == []
    assert report(audit).verdict == "holds"
    assert run(audit, drawn(0.5, 500, 0)) == []
    assert report(audit).verdict == "open"
    assert report(audit).lower > 0.05
    for unknown in ({"tolerance": 0.1}, {"epsilon": {"yes": 0.9, "no": 0.9}}):
        audit = Audit([certified(risk="accuracy", **unknown)], LAYERS, share=1)
        run(audit, [False] * 500)
        assert report(audit).verdict == "open"


def test_without_a_certificate_there_are_bounds_and_no_verdict() -> None:
    audit = Audit([Policy.parse("entropy:0.2")], LAYERS, share=1)
    assert run(audit, [True] * 100) == []
    assert report(audit).verdict is None
    assert report(audit).lower > 0.8


def test_full_depth_predictions_are_not_run_again_unless_the_rule_combines_exits() -> None:
    for text, ran in (("entropy:0.2", 0), ("ensemble:0.9", 1)):
        audit, runs = Audit([certified(text)], LAYERS, share=1), []
        audit.offer(0, [Tokens([1])], [answer(layer=4)])
        audit.examine(ready(lambda tokens, runs=runs: runs.append(tokens) or answer()))  # type: ignore[misc]
        assert len(runs) == ran
        assert report(audit).examined == 1


def test_a_certificate_about_another_model_is_compared_with_that_model() -> None:
    """Even at full depth, int8 or tuning may change a prediction of the original."""
    for reference, expected in (("my-classifier", 1), ("", 0)):
        audit = Audit([certified(reference=reference)], LAYERS, share=1)
        audit.offer(0, [Tokens([1])], [answer("yes", layer=4)])
        audit.examine(
            ready(lambda _: answer("yes", layer=4)), original=ready(lambda _: answer("no", layer=4))
        )
        assert report(audit).disagreed == expected


def test_a_share_of_predictions_is_kept_and_the_oldest_dropped() -> None:
    audit = Audit([certified()], LAYERS, share=0.1, keep=50)
    for row in range(5000):
        audit.offer(0, [Tokens([row])], [answer()])
    assert audit.pending == 50
    seen: list[int] = []
    audit.examine(ready(lambda tokens: seen.append(tokens.ids[0]) or answer()))  # type: ignore[func-returns-value]
    assert seen[0] > 4000


def test_a_busy_rung_does_not_crowd_out_another() -> None:
    audit = Audit([certified(), certified("entropy:0.4")], LAYERS, share=1, keep=5)
    for rung, answers in enumerate((3, 100)):
        for row in range(answers):
            audit.offer(rung, [Tokens([row])], [answer()])
    assert audit.pending == 3 + 5
    for _ in range(6):
        audit.examine(ready(lambda _: answer()))
    assert [each.examined for each in audit.reports()] == [3, 3]


def test_a_failing_run_loses_only_one_prediction() -> None:
    audit = Audit([certified()], LAYERS, share=1)
    audit.offer(0, [Tokens([1])], [answer()])
    with pytest.raises(ZeroDivisionError):
        audit.examine(ready(lambda _: answer(score=1 / 0)))
    assert (audit.pending, report(audit).examined) == (0, 0)
    assert audit.examine(ready(lambda _: answer())) is None


def test_drift_is_the_distance_of_the_latest_exits_from_calibration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calibrated = Conditions("entropy:0.2", mean_layer=1.7, exits=(0.5, 0.3, 0.2, 0.0))
    audit = Audit([certified(conditions=calibrated), certified()], LAYERS, share=0)
    for layer in [1] * 5 + [2] * 3 + [4] * 2:
        audit.offer(0, [Tokens([1])], [answer(layer=layer)])
        audit.offer(1, [Tokens([1])], [answer(layer=layer)])
    known, unknown = audit.reports()
    assert known.exits == unknown.exits == (5, 3, 0, 2)
    assert known.drift == pytest.approx(0.2)
    assert not known.drifted  # ten predictions are too few
    assert unknown.drift is None
    for _ in range(DRIFT_MINIMUM):
        audit.offer(0, [Tokens([1])], [answer(layer=4)])
    assert audit.reports()[0].drifted
    assert audit.reports()[0].drift > 5 * DRIFT_LIMIT
    assert caplog.text.count("drifted from calibration") == 1
    for layer in ([1] * 5 + [2] * 3 + [3] * 2) * (DRIFT_WINDOW // 10):
        audit.offer(0, [Tokens([1])], [answer(layer=layer)])
    recovered = audit.reports()[0]
    assert recovered.exits == (DRIFT_WINDOW * 0.5, DRIFT_WINDOW * 0.3, DRIFT_WINDOW * 0.2, 0)
    assert recovered.drift == pytest.approx(0)
    assert not recovered.drifted
