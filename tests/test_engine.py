"""The engine on numpy stages: batching never changes a result, and no framework is needed."""

import math
import threading
from collections.abc import Sequence
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import FakeRuntime, make_info
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp import engine
from offramp.engine import Engine
from offramp.errors import BadOption, Incompatible
from offramp.policy import Policy
from offramp.rules.agreement import Agreement
from offramp.runtimes import Tokens

POISON = 666

FITTED = Policy(
    Agreement(coefficients=tuple((0.1, 0.5, 0.3, -0.2, 0.4, 0.1, 0.3 * exit) for exit in range(4)))
)
POLICIES = [
    "agreement:0.6",
    "agreement:0.8,min_layer=4",
    "entropy:0.4",
    "entropy:0.1/0.5/0.6/0.2",
    "confidence:0.7,min_layer=4",
    "margin:0.5,max_layer=6",
    "min_probability:0.1",
    "patience:2",
    "window:2,shape=side,entropy=0.1,margin=0",
    "window:2,shape=range,entropy=0.1,margin=0,range=0.2",
    "patience_confidence:2,confidence=0.5",
    "ensemble:0.6",
    "gate:0.7",
    "layer:4",
    "never",
]


def examples(lengths: Sequence[int], seed: int = 0) -> list[Tokens]:
    draw = np.random.default_rng(seed)
    return [Tokens(draw.integers(0, 50, length).tolist()) for length in lengths]


def offline(texts: list[Tokens], policy: Policy, runtime: FakeRuntime) -> Any:
    outputs = [[runtime.outputs(text, exit) for exit in range(4)] for text in texts]
    logits = np.array([[logits for logits, _ in row] for row in outputs])
    gates = np.array([[gate for _, gate in row] for row in outputs])
    return policy.decide(logits, gates, runtime.info.exits, runtime.info.problem)


def assert_same(left: Any, right: Any) -> None:
    np.testing.assert_array_equal(left.exits, right.exits)
    np.testing.assert_array_equal(left.logits, right.logits)
    np.testing.assert_array_equal(left.finite, right.finite)


@pytest.mark.parametrize("text", POLICIES)
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=40),
    window=st.integers(1, 50),
    batch_tokens=st.integers(1, 100),
    overhead=st.integers(0, 30),
    seed=st.integers(0, 9),
)
def test_no_window_budget_or_neighbour_changes_a_result(
    text: str, lengths: list[int], window: int, batch_tokens: int, overhead: int, seed: int
) -> None:
    policy = Policy.parse(text).with_fit_of(FITTED)
    runtime, texts = FakeRuntime(overhead=overhead), examples(lengths, seed)
    assert_same(Engine(runtime, window, batch_tokens).run(texts, policy), offline(texts, policy, runtime))


@settings(max_examples=25)
@given(order=st.permutations(range(30)))
def test_the_order_of_examples_does_not_change_their_results(order: list[int]) -> None:
    engine, texts, policy = Engine(FakeRuntime(), 8), examples(range(1, 31)), Policy.parse("entropy:0.4")
    given_order, moved = engine.run(texts, policy), engine.run([texts[i] for i in order], policy)
    np.testing.assert_array_equal(moved.exits, given_order.exits[order])
    np.testing.assert_array_equal(moved.logits, given_order.logits[order])


@pytest.mark.parametrize("text", ["entropy:0.4", "patience:1", "never"])
def test_an_exit_at_layer_0_is_an_exit_like_any_other(text: str) -> None:
    runtime, texts, policy = FakeRuntime(make_info((0, 2, 4, 6))), examples(range(1, 20)), Policy.parse(text)
    assert_same(Engine(runtime).run(texts, policy), offline(texts, policy, runtime))


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), batch_tokens=st.integers(1, 100))
@settings(max_examples=50)
def test_micro_batches_keep_to_the_budget_unless_one_text_is_longer(
    lengths: list[int], batch_tokens: int
) -> None:
    runtime = FakeRuntime()
    Engine(runtime, batch_tokens=batch_tokens).run(examples(lengths), Policy.parse("entropy:0.4"))
    assert sum(len(batch) for exit, batch in runtime.batches if exit == 0) == len(lengths)
    for _, batch in runtime.batches:
        assert len(batch) * batch.max() <= batch_tokens or len(batch) == 1


def test_no_example_runs_after_leaving() -> None:
    runtime, texts, policy = FakeRuntime(), examples([*range(1, 21)] * 5), Policy.parse("entropy:0.4")
    decision = Engine(runtime).run(texts, policy)
    for exit in range(4):
        run = sum(len(batch) for at, batch in runtime.batches if at == exit)
        assert run == (decision.exits >= exit).sum()


@pytest.mark.parametrize(
    ("text", "run"), [("never", [3]), ("layer:6", [2]), ("margin:2,min_layer=4", [1, 2, 3])]
)
def test_exits_that_cannot_matter_are_skipped(text: str, run: list[int]) -> None:
    runtime, texts, policy = FakeRuntime(), examples([5] * 3), Policy.parse(text)
    assert_same(Engine(runtime).run(texts, policy), offline(texts, policy, runtime))
    assert [exit for exit, _ in runtime.batches] == run


def test_neighbours_that_fit_the_budget_run_as_one() -> None:
    runtime = FakeRuntime(batch_tokens=64)
    Engine(runtime).run(examples([8] * 64), Policy.parse("entropy:0.4"))
    for exit in range(4):
        rows = [len(batch) for at, batch in runtime.batches if at == exit]
        assert rows
        assert all((left + right) * 8 > 64 for left, right in pairwise(rows))


def test_padding_never_exceeds_the_overhead() -> None:
    runtime = FakeRuntime(batch_tokens=10_000, overhead=0)
    Engine(runtime).run(examples([*range(1, 21)] * 3), Policy.parse("entropy:0.4"))
    assert sum(len(batch) for exit, batch in runtime.batches if exit == 0) == 60
    assert all(batch.min() == batch.max() for _, batch in runtime.batches)


def test_long_texts_end_a_window_early() -> None:
    engine = Engine(FakeRuntime(), window=1000, batch_tokens=10)
    windows = [*engine.windows(examples([10] * 200))]
    assert [len(window) for window in windows] == [64, 64, 64, 8]
    assert [*engine.windows(examples([5000] * 3))] == [range(1), range(1, 2), range(2, 3)]


def test_a_failing_stage_leaves_the_engine_usable() -> None:
    runtime, texts, policy = FakeRuntime(poison=POISON), examples(range(1, 20)), Policy.parse("patience:1")
    engine = Engine(runtime, 8)
    with pytest.raises(ZeroDivisionError):
        engine.run([*texts, Tokens([1, POISON])], policy)
    assert_same(engine.run(texts, policy), offline(texts, policy, runtime))


def test_threads_share_an_engine() -> None:
    runtime, policies = FakeRuntime(), [Policy.parse(text).with_fit_of(FITTED) for text in POLICIES]
    engine, texts, found = Engine(runtime, 8), examples(range(1, 30)), {}

    def work(index: int) -> None:
        found[index] = [engine.run(texts, policies[index]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(policies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, policy in enumerate(policies):
        for decision in found[index]:
            assert_same(decision, offline(texts, policy, runtime))


def test_trace_returns_the_outputs_of_every_exit() -> None:
    runtime, texts = FakeRuntime(), examples([3, 1, 9, 4, 4])
    logits, gates = Engine(runtime, 2).trace(texts)
    assert gates is not None
    for row, text in enumerate(texts):
        for exit in range(4):
            expected, gate = runtime.outputs(text, exit)
            np.testing.assert_array_equal(logits[row, exit], expected)
            assert gates[row, exit] == gate


def test_after_the_deadline_the_last_exit_passed_counts() -> None:
    runtime, texts, never = FakeRuntime(), examples([5] * 3), Policy.parse("never")
    decision = Engine(runtime).run(texts, never, deadline=-math.inf)
    assert decision.exits.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(decision.logits[0], runtime.outputs(texts[0], 0)[0])


def test_a_deadline_within_a_stage_leaves_each_micro_batch_with_its_own_last_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, texts = FakeRuntime(batch_tokens=8, overhead=0), examples([8, 4])
    tick = SimpleNamespace(monotonic=count().__next__)  # once for each micro-batch
    monkeypatch.setattr(engine, "time", tick)
    decision = Engine(runtime).run(texts, Policy.parse("never"), deadline=0)
    assert decision.exits.tolist() == [0, 1]
    for row, exit in enumerate(decision.exits):
        np.testing.assert_array_equal(decision.logits[row], runtime.outputs(texts[row], exit)[0])


def test_each_example_has_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, texts = FakeRuntime(overhead=0), examples([5, 3, 5, 5, 9])
    policy, ticks = Policy.parse("entropy:0.4"), count()
    tick = SimpleNamespace(monotonic=lambda: next(ticks) // 3)  # three lengths are three micro-batches
    monkeypatch.setattr(engine, "time", tick)
    never_late = offline(texts, policy, runtime)
    assert never_late.exits.tolist() == [3, 3, 1, 3, 2]
    decision = Engine(runtime).run(texts, policy, deadline=np.array([-1, 0, math.inf, math.inf, math.inf]))
    assert decision.exits.tolist() == [0, 1, 1, 3, 2]
    for row, exit in enumerate(decision.exits.tolist()):
        np.testing.assert_array_equal(decision.logits[row], runtime.outputs(texts[row], exit)[0])


def test_logits_that_are_not_finite_never_leave_early_and_are_flagged() -> None:
    class Broken(FakeRuntime):
        def outputs(self, example: Tokens, exit: int) -> tuple[np.ndarray, Any]:
            logits, gate = super().outputs(example, exit)
            return np.float32([np.nan, 900, 0]) if 7 in example.ids else logits, gate

    texts = [Tokens([1, 2]), Tokens([7, 2]), Tokens([3])]
    decision = Engine(Broken()).run(texts, Policy.parse("confidence:0.0"))
    assert decision.exits.tolist() == [0, 3, 0]
    assert decision.finite.tolist() == [True, False, True]
    assert np.isnan(decision.logits[1, 0])


def test_no_examples_give_an_empty_decision() -> None:
    assert Engine(FakeRuntime()).run([], Policy.parse("never")).logits.shape == (0, 3)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(BadOption, match="window=0"):
        Engine(FakeRuntime(), window=0)
    with pytest.raises(BadOption, match="example 1 has no tokens"):
        Engine(FakeRuntime()).run([Tokens([1]), Tokens([])], Policy.parse("never"))
    with pytest.raises(Incompatible, match="layer=3"):
        Engine(FakeRuntime()).run([Tokens([1])], Policy.parse("layer:3"))
