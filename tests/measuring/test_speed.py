"""Contenders side by side: who is timed on what, for how long, and which predictions change."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
import pytest

from offramp.measuring.speed import PROBES, Contender, Speed, compare_speed, measure_contender, time_in_turns
from offramp.policy import Policy
from offramp.trace import Trace

Clock = Callable[[float], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """wait(seconds) moves the only clock there is."""
    now = [0.0]
    monkeypatch.setattr("offramp.measuring.speed.time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_speeds_are_milliseconds_per_example_alone_and_in_a_batch(wait: Clock) -> None:
    def slow(examples: Sequence[Any]) -> None:
        wait(0.010 + 0.002 * len(examples))

    def fast(examples: Sequence[Any]) -> None:
        wait(0.001 + 0.001 * len(examples))

    speeds = compare_speed({"slow": slow, "fast": fast}, range(10))
    assert astuple(speeds["slow"]) == pytest.approx((12, 3, 12, 12))
    times = speeds["fast"].times_faster_than(speeds["slow"])
    assert astuple(times) == pytest.approx((6, 3 / 1.1, 6, 6))


def test_percentiles_are_of_examples_and_leave_out_the_warm_up(wait: Clock) -> None:
    calls = itertools.count()

    def predict(examples: Sequence[Any]) -> None:
        wait(sum(examples) / 1000 + (50 if next(calls) < PROBES + 1 + 100 else 0))

    speed = compare_speed({"one": predict}, range(101))["one"]
    assert (speed.single, speed.p50, speed.p95) == pytest.approx((49.5, 49.5, 94.05))


@pytest.mark.parametrize("per_example", [0.001, 0.2, 1.0, 2.0, 4.0, 15.0])
def test_timing_keeps_to_its_time_however_long_an_example_takes(wait: Clock, per_example: float) -> None:
    spent = [0.0]

    def predict(examples: Sequence[Any]) -> None:
        wait(per_example * len(examples))
        spent[0] += per_example * len(examples)

    speeds = compare_speed({"one": predict, "other": predict}, range(500), seconds=20)
    assert spent[0] <= max(20, 2 * per_example)  # one call of each is the least
    assert astuple(speeds["one"]) == pytest.approx((1000 * per_example,) * 4)


def test_the_median_of_alternating_runs_ignores_a_busy_moment(wait: Clock) -> None:
    order = []
    seconds = {"a": iter([1.0, 9.0, 1.0]), "b": iter([2.0, 2.0, 9.0])}

    def run(name: str) -> Callable[[], None]:
        def predict() -> None:
            order.append(name)
            wait(next(seconds[name]))

        return predict

    assert time_in_turns({"a": run("a"), "b": run("b")}, repeats=3) == {"a": 1, "b": 2}
    assert order == [*itertools.chain.from_iterable(["ab"] * 3)]


def test_changed_predictions_are_counted_against_the_reference() -> None:
    logits = np.zeros((4, 2, 2), np.float32)
    logits[:, 0, 0] = 1  # the first exit says 0, the last 1
    logits[:, 1, 1] = 1
    reference = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], np.float32)
    trace = Trace(
        logits=logits,
        lengths=np.ones(4, np.int64),
        ids=np.arange(4),
        layers=(1, 2),
        labels=np.array([0, 0, 1, 1]),
        problem="single_label_classification",
        metrics=("acc",),
        reference=reference,
    )
    speed = Speed(1, 1, 1, 1)
    original = measure_contender("original", trace, None, speed, speed)
    first = measure_contender("first exit", trace, Policy.parse("layer:1"), Speed(0.5, 0.25, 0.5, 1), speed)
    assert (original.losses, original.scores, original.mean_layer) == ({"changed": 0}, {"acc": 0.75}, 2)
    assert (first.losses, first.scores, first.mean_layer) == ({"changed": 0.75}, {"acc": 0.5}, 1)
    assert first.times_faster == Speed(2, 4, 2, 1)


def test_changed_predictions_are_those_that_the_policy_returns() -> None:
    draw = np.random.default_rng(0)
    trace = Trace(
        draw.normal(size=(300, 3, 2)).astype(np.float32),
        (1, 2, 3),
        None,
        np.ones(300, int),
        np.arange(300),
        reference=draw.normal(size=(300, 2)).astype(np.float32),
        reference_name="mine",
    )
    policy, speed = Policy.parse("ensemble:0.7"), Speed(1, 1, 1, 1)  # returns a mean of exits
    returned = policy.decide(trace.logits, layers=trace.layers).logits.argmax(-1)
    found = measure_contender("exits", trace, policy, speed, speed)
    assert found.losses["changed"] == np.mean(returned != trace.reference_predictions())


def test_a_contender_survives_json() -> None:
    row = Contender("offramp", {"overlap": 0.1}, {}, 2.5, Speed(1, 2, 3, 4), Speed(3, 4, 5, 6))
    assert Contender.from_json(json.loads(json.dumps(asdict(row)))) == row
