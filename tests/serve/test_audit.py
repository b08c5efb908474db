"""The audit counts as calibration does, rarely calls a valid certificate broken, and soon finds a broken one."""

import random
import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakes
import numpy as np
import pytest
from bench import LOOSER, LOOSEST, WAIT, Bench, Make
from bench import predictions as answered
from fakes import make_certificate

from offramp.guarantees import Conditions
from offramp.guarantees.operating_point import OperatingPoint
from offramp.inference import Prediction
from offramp.inference.classifier import predictions
from offramp.inference.runner import NEVER
from offramp.measuring import Guarantee, calibrate
from offramp.policy import Decision, Policy
from offramp.runtimes import Tokens
from offramp.serve import audit as audit_module
from offramp.serve import batcher as batcher_module
from offramp.serve.audit import (
    DRIFT_LIMIT,
    DRIFT_MINIMUM,
    DRIFT_WINDOW,
    Audit,
    Run,
    RungReport,
    Sample,
    run_to_the_end,
)
from offramp.serve.ladder import FULL_DEPTH
from offramp.serve.queue import Example
from offramp.trace import Trace

MakeTrace = Callable[..., Trace]
Until = Callable[[Callable[[], bool]], None]


def ready(predict: Callable[[Tokens], Prediction], by_policy: Prediction | None = None) -> Run:
    """A model whose predictions take no time."""

    def run(example: Example, policy: Policy) -> Generator[None, None, list[Prediction]]:
        yield from ()
        return [by_policy if by_policy and policy != NEVER else predict(each) for each in example.rows]

    return run


LAYERS = (1, 2, 3, 4)
DELTA = 0.1
TEXTS = [f"{one} {two} {three}" for one in "abcdefghij" for two in "abcdefghij" for three in "abcd"]


PROOF: dict[str, Any] = {"epsilon": 0.05, "examples": 100, "observed_risk": 0.0, "conditions": None}


def certified(policy: Policy | str = "entropy:0.2", **fields: Any) -> Policy:
    return fakes.certified(policy, **PROOF | fields)


def answer(label: str | None = "yes", layer: int = 1, score: float = 0.9) -> Prediction:
    chances = {} if label is None else {"yes": 0.5, "no": 0.5}
    return Prediction(label, score, chances, layer, LAYERS[-1])


texts = map(Tokens, zip(count()))
"""Each is new."""


def run(audit: Audit, differs: Iterable[bool], full: str = "yes") -> list[int]:
    """After how many predictions, each for a new text, the rung broke or was used again."""
    changes, was_broken = [], bool(audit.broken)
    same, other = answer(full), answer("no" if full == "yes" else "yes")
    for seen, different in enumerate(differs, 1):
        given = other if different else same
        audit.offer(FULL_DEPTH if audit.broken else 0, [Sample(Example([next(texts)]), [given])])
        audit.examine(ready(lambda _: answer(full, layer=4), by_policy=given))
        if bool(audit.broken) != was_broken:
            was_broken = not was_broken
            changes.append(seen)
    return changes


def drawn(rate: float, number: int, seed: int) -> list[bool]:
    draw = random.Random(seed)
    return [draw.random() < rate for _ in range(number)]


def report(audit: Audit) -> RungReport:
    [only] = audit.reports()
    return only


def test_predictions_that_there_was_no_time_to_compare_are_counted() -> None:
    audit = Audit([certified()], LAYERS, share=1.0, keep=3)
    for _ in range(5):
        audit.offer(0, [Sample(Example([next(texts)]), [answer()])])
    assert (report(audit).dropped, audit.pending) == (2, 3)


def test_copies_of_a_text_in_one_request_count_once() -> None:
    audit = Audit([certified()], LAYERS, share=0.5)
    audit.offer(0, [Sample(Example([Tokens([1])]), [answer("no")])] * 100)
    assert audit.pending == 1
    audit.examine(ready(lambda _: answer("yes", layer=4)))
    assert (report(audit).examined, report(audit).verdict) == (1, "open")
    assert sum(report(audit).exits) == 100


def test_clients_cannot_know_which_predictions_are_kept() -> None:
    def kept() -> list[int]:
        audit = Audit([certified()], LAYERS, share=0.5)
        for row in range(100):
            audit.offer(0, [Sample(Example([Tokens([row])]), [answer()])])
        rows: list[int] = []
        while audit.pending:
            audit.examine(ready(lambda tokens: rows.append(tokens.ids[0]) or answer()))  # type: ignore[func-returns-value]
        return rows

    assert kept() != kept()


def test_rungs_share_delta() -> None:
    """So each of many takes longer to be called broken."""
    alone, shared = (
        run(Audit([certified()] * rungs, LAYERS, share=1, delta=DELTA), [False, True] * 10)[0]
        for rungs in (1, 10)
    )
    assert alone < shared


def test_a_text_that_is_sent_again_and_again_does_not_break_a_certificate() -> None:
    audit = Audit([certified()], LAYERS, share=1)
    for _ in range(2000):
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer("no")])])
        audit.examine(ready(lambda _: answer("yes", layer=4)))
    assert (report(audit).examined, report(audit).dropped, audit.broken) == (1, 0, {})


def test_a_text_counts_again_after_an_hour() -> None:
    now = [0.0]
    audit = Audit([certified()], LAYERS, share=1, clock=lambda: now[0])
    for now[0], examined in [(0.0, 1), (3599.0, 1), (3600.0, 2), (3601.0, 2)]:
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer()])])
        audit.examine(ready(lambda _: answer("yes", layer=4)))
        assert report(audit).examined == examined


def test_a_broken_rung_is_compared_on_and_used_again_once_it_is_proven() -> None:
    audit = Audit([certified()], LAYERS, share=1)
    [broke] = run(audit, [True] * 30)
    assert re.fullmatch(r"the mean loss .* is 100.0%, and 5.0% is allowed", report(audit).reason)
    assert report(audit).examined == 30 - broke  # of what it would have answered
    assert run(audit, drawn(0.2, 500, 0)) == []  # not proven
    [proven] = run(audit, drawn(0.01, 1000, 1))
    assert (report(audit).verdict, report(audit).reason, audit.broken) != ("broken", "", {})
    assert 50 < proven < 500
    assert report(audit).since
    assert run(audit, drawn(0.3, 200, 2))  # and watched as before


def test_exits_that_were_not_taken_are_not_counted() -> None:
    audit = Audit([certified(), certified("entropy:0.4")], LAYERS, share=1)
    run(audit, [True] * 30)
    before = [each.exits for each in audit.reports()]
    audit.offer(FULL_DEPTH, [Sample(Example([next(texts)]), [answer(layer=4)])])
    assert [each.exits for each in audit.reports()] == before
    assert audit.pending == 1  # for the broken rung alone


def test_three_times_the_disagreement_is_found_within_hundreds() -> None:
    found = [run(Audit([certified()], LAYERS, share=1), drawn(0.15, 300, seed)) for seed in range(15)]
    assert all(found)
    assert all(len(each) <= 1 for each in found)  # it stays broken


def test_a_long_good_past_does_not_hide_a_change() -> None:
    audit = Audit([certified()], LAYERS, share=1)
    assert run(audit, drawn(0.01, 3000, 0)) == []
    assert report(audit).verdict == "holds"
    assert run(audit, drawn(0.15, 200, 1))
    assert report(audit).verdict == "broken"


def problem(make_trace: MakeTrace, kind: str) -> tuple[Trace, Guarantee, str]:
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
    if kind == "two risks":
        return replace(made, decide="a>=0.7"), Guarantee({"missed": 0.4, "false_alarm": 0.3}), "entropy"
    if kind == "score":
        return made, Guarantee(0.5, risk="score", tolerance=0.2), "entropy"
    if kind == "by exit":
        return made, Guarantee(0.25, by="exit"), "entropy"
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
        "two risks",
        "score",
        "by exit",
    ],
)
def test_the_audit_counts_what_calibration_counts(make_trace: MakeTrace, kind: str) -> None:
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
        audit.offer(0, [Sample(Example([Tokens([row])]), [prediction])])
    while audit.pending:
        audit.examine(ready(lambda tokens: full[tokens.ids[0]]))
    found, proof = report(audit), policy.certificate
    assert proof is not None
    assert found.examined == len(trace)
    changed = sum(bound.examples * bound.observed_risk for bound in proof.bounds)
    if kind != "by exit":  # its thresholds are fitted on a part of the examples
        assert found.disagreed == pytest.approx(changed)
        assert found.drift == pytest.approx(0, abs=1e-9)
    assert 0 < found.lower < changed / proof.examples < found.upper
    named = [*proof.bounds] if len(proof.bounds) > 1 else []
    assert len(found.by_bound) == len(named)
    for bound in named:
        low, high = found.by_bound[bound.group or bound.risk]
        assert low <= bound.observed_risk < high


def test_a_bound_of_one_class_is_broken_by_that_class_alone() -> None:
    policy = certified(epsilon={"no": 0.05, "yes": 0.5})
    assert not run(Audit([policy], LAYERS, share=1), drawn(0.2, 500, 0), full="yes")
    assert run(Audit([policy], LAYERS, share=1), drawn(0.2, 500, 0), full="no")


def test_a_bound_on_missed_ones_is_broken_by_those_alone() -> None:
    """And as a share of the examples that the reference says yes to."""
    no, yes = (replace(answer("yes", layer=4), decision=decided) for decided in (False, True))
    for full, given, broken in ((no, yes, False), (yes, yes, False), (yes, no, True)):
        audit = Audit([certified(risk="missed", epsilon=0.2)], LAYERS, share=1)
        for text in islice(texts, 50):
            audit.offer(0, [Sample(Example([text]), [replace(given, layer=1)])])
            audit.examine(ready(lambda _, full=full: full, by_policy=given))  # type: ignore[misc]
        assert bool(audit.broken) is broken
        assert broken or report(audit).examined == (50 if full is yes else 0)


def test_a_bound_on_categories_is_neither_proven_nor_broken() -> None:
    """The server does not know them."""
    proof = make_certificate(**PROOF | {"group": "de"})
    audit = Audit([replace(certified(), certificate=replace(proof, by="language"))], LAYERS, share=1)
    assert run(audit, [False] * 500 + [True] * 500) == []
    assert report(audit).verdict == "open"
    assert report(audit).lower > 0.3


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
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer(layer=4)])])
        audit.examine(ready(lambda tokens, runs=runs: runs.append(tokens) or answer()))  # type: ignore[misc]
        assert len(runs) == ran
        assert report(audit).examined == 1


def test_a_certificate_about_another_model_is_compared_with_that_model() -> None:
    """Even at full depth, int8 or tuning may change a prediction of the original."""
    for reference, expected in (("my-classifier", 1), ("", 0)):
        audit = Audit([certified(reference=reference)], LAYERS, share=1)
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer("yes", layer=4)])])
        audit.examine(
            ready(lambda _: answer("yes", layer=4)), original=ready(lambda _: answer("no", layer=4))
        )
        assert report(audit).disagreed == expected


def test_a_share_of_predictions_is_kept_and_the_oldest_dropped() -> None:
    audit = Audit([certified()], LAYERS, share=0.1, keep=50)
    for row in range(5000):
        audit.offer(0, [Sample(Example([Tokens([row])]), [answer()])])
    assert audit.pending == 50
    seen: list[int] = []
    audit.examine(ready(lambda tokens: seen.append(tokens.ids[0]) or answer()))  # type: ignore[func-returns-value]
    assert seen[0] > 4000


def test_a_busy_rung_does_not_crowd_out_another() -> None:
    audit = Audit([certified(), certified("entropy:0.4")], LAYERS, share=1, keep=5)
    for rung, answers in enumerate((3, 100)):
        for row in range(answers):
            audit.offer(rung, [Sample(Example([Tokens([row])]), [answer()])])
    assert audit.pending == 3 + 5
    for _ in range(6):
        audit.examine(ready(lambda _: answer()))
    assert [each.examined for each in audit.reports()] == [3, 3]


def test_a_failing_run_loses_only_one_prediction() -> None:
    audit = Audit([certified()], LAYERS, share=1)
    audit.offer(0, [Sample(Example([Tokens([1])]), [answer()])])
    with pytest.raises(ZeroDivisionError):
        audit.examine(ready(lambda _: answer(score=1 / 0)))
    assert (audit.pending, report(audit).examined) == (0, 0)
    audit.examine(ready(lambda _: answer()))
    assert report(audit).examined == 0


def test_drift_is_the_distance_of_the_latest_exits_from_calibration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calibrated = Conditions("entropy:0.2", mean_layer=1.7, exits=(0.5, 0.3, 0.2, 0.0))
    audit = Audit([certified(conditions=calibrated), certified()], LAYERS, share=0)
    for layer in [1] * 5 + [2] * 3 + [4] * 2:
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer(layer=layer)])])
        audit.offer(1, [Sample(Example([Tokens([1])]), [answer(layer=layer)])])
    known, unknown = audit.reports()
    assert known.exits == unknown.exits == (5, 3, 0, 2)
    assert known.drift == pytest.approx(0.2)
    assert not known.drifted  # ten predictions are too few
    assert unknown.drift is None
    for _ in range(DRIFT_MINIMUM):
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer(layer=4)])])
    assert audit.reports()[0].drifted
    assert audit.reports()[0].drift > 5 * DRIFT_LIMIT
    assert caplog.text.count("drifted from calibration") == 1
    for layer in ([1] * 5 + [2] * 3 + [3] * 2) * (DRIFT_WINDOW // 10):
        audit.offer(0, [Sample(Example([Tokens([1])]), [answer(layer=layer)])])
    recovered = audit.reports()[0]
    assert recovered.exits == (DRIFT_WINDOW * 0.5, DRIFT_WINDOW * 0.3, DRIFT_WINDOW * 0.2, 0)
    assert recovered.drift == pytest.approx(0)
    assert not recovered.drifted


def test_a_rung_whose_certificate_the_audit_breaks_is_no_longer_used(
    make: Make, caplog: pytest.LogCaptureFixture, until: Until
) -> None:
    bench = make(certified(LOOSEST), audit=1.0, items=60, tokens=6000)
    assert bench.batcher.audit is not None
    bench.shut()
    replies = [bench.submit(text) for text in TEXTS[:58]]  # one text of each request is examined
    bench.open()
    assert {reply.result(WAIT).rung for reply in replies} == {1}
    until(lambda: bool(bench.batcher.ladder.forbidden))
    assert bench.submit(TEXTS[:50]).result(WAIT).rung == 0
    assert "rung 1" in caplog.text
    _, report = bench.batcher.audit.reports()
    assert report.verdict == "broken"


def test_a_rung_is_used_again_once_new_texts_have_proven_it(make: Make, until: Until) -> None:
    bench = make(audit=1.0, rung_0=certified(LOOSER, epsilon=0.3), items=200)
    differ = {
        text: bench.classifier.predict(text, policy=LOOSER).label != full(bench, text) for text in TEXTS
    }
    bad, good = ([text for text in TEXTS if differ[text] is wrong] for wrong in (True, False))
    for text in bad:
        answered(bench.submit(text))
    until(lambda: bool(bench.batcher.ladder.forbidden))
    assert bench.submit("a").result(WAIT).rung == FULL_DEPTH
    for text in good:
        answered(bench.submit(text))
    until(lambda: not bench.batcher.ladder.forbidden)
    assert bench.submit("a").result(WAIT).rung == 0


def full(bench: Bench, text: str) -> Any:
    return bench.classifier.predict(text, policy="never").label


def test_a_rung_is_still_used_if_the_audit_may_only_warn(
    make: Make, caplog: pytest.LogCaptureFixture, until: Until
) -> None:
    bench = make(
        certified(LOOSEST),
        audit=1.0,
        warn_only=True,
        items=60,
        tokens=6000,
    )
    audit = bench.batcher.audit
    assert audit is not None
    bench.shut()
    replies = [bench.submit(text) for text in TEXTS[:58]]
    bench.open()
    assert {reply.result(WAIT).rung for reply in replies} == {1}
    until(lambda: bool(audit.broken))
    until(lambda: "it is still used, as --audit-warn-only says" in caplog.text)
    assert not bench.batcher.ladder.forbidden


def test_what_one_server_found_is_known_to_the_next(make: Make, tmp_path: Path, until: Until) -> None:
    rung = certified(LOOSEST)
    bench = make(rung, audit=1.0, items=60, tokens=6000, folder=tmp_path)
    audit = bench.batcher.audit
    assert audit is not None
    bench.shut()
    replies = [bench.submit(text) for text in TEXTS[:58]]
    bench.open()
    assert {reply.result(WAIT).rung for reply in replies} == {1}
    until(lambda: not audit.pending)
    bench.batcher.settle_audit()
    assert bench.batcher.ladder.reasons == ["", "certificate"]
    assert make(rung, audit=1.0, folder=tmp_path).batcher.ladder.reasons == ["", "certificate"]
    others = make(certified(LOOSEST, epsilon=0.04), audit=1.0, folder=tmp_path)
    assert others.batcher.ladder.reasons == ["", ""]  # another certificate has another account


def test_while_texts_wait_the_audit_takes_its_share_of_the_time_and_no_more(
    make: Make, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    bench, now, examined = make(audit=1.0, window=1), [0.0], list[int]()
    for each in (batcher_module, audit_module):
        monkeypatch.setattr(each, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(audit_module, "BUSY_SHARE", 0.25)
    monkeypatch.setattr(audit_module, "MOST_CREDIT", 100)
    early = [text for text in TEXTS if bench.classifier.predict(text).layer < 8][:41]

    def takes_a_second() -> None:
        now[0] += 1

    def count(_: Any) -> None:
        examined.append(bench.batcher.audit.reports()[0].examined)  # type: ignore[union-attr]

    bench.runtime.before = takes_a_second
    futures = [bench.shut(early[0]), *(bench.submit(text) for text in early[1:])]
    futures[-1].add_done_callback(count)  # in the worker thread, before it audits again
    bench.open()
    for future in futures:
        answered(future)
    until(lambda: bench.batcher.audit.reports()[0].examined == 41)  # type: ignore[union-attr]
    assert examined == [10]  # a second each, beside 40 seconds for the texts


def test_the_audit_compares_with_full_depth_in_the_runtime_that_serves(make: Make) -> None:
    bench = make(audit=1.0)
    tokens = bench.classifier.runner.tokenizer(["a b"])
    bench.runtime.batches.clear()
    with pytest.raises(StopIteration) as end:  # a single text is run without a pause
        next(run_to_the_end(bench.classifier.runner, Example(tokens), NEVER))
    assert end.value.value == [bench.classifier.predict("a b", policy="never")]
    assert [exit for exit, _ in bench.runtime.runs] == [3, 3]  # both ran in these stages


def test_requests_with_their_own_limits_are_not_audited(make: Make) -> None:
    bench = make(audit=1.0)
    assert bench.batcher.audit is not None
    answered(bench.submit("a b", max_layer=2))
    answered(bench.submit("a b", deadline_ms=0))
    answered(bench.submit("a b", policy=LOOSEST))
    assert bench.batcher.audit.reports()[0].exits == (0, 0, 0, 0)
    [prediction] = answered(bench.submit("a b"))
    assert sum(bench.batcher.audit.reports()[0].exits) == 1
    assert bench.batcher.audit.reports()[0].exits[bench.runtime.info.exits.index(prediction.layer)] == 1
