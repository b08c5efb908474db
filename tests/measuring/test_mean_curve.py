"""Traces of the same data are compared; those of one model that differ in their seed are averaged."""

from collections.abc import Callable

import numpy as np
import pytest

from offramp.measuring import Sweep, sweep
from offramp.measuring.curve import compare
from offramp.trace import Trace

Make = Callable[..., Trace]


@pytest.fixture
def seeds(make_trace: Make) -> dict[str, Sweep]:
    return {
        f"a-seed{seed}": sweep(make_trace(200, seed=seed, data="dev"), ["patience", "entropy", "oracle"])
        for seed in range(3)
    }


def test_seeds_with_the_same_thresholds_are_averaged_at_each_threshold(seeds: dict[str, Sweep]) -> None:
    curve = next(each for each in compare(seeds) if each.rule == "patience")
    assert (curve.model, curve.traces) == ("a", 3)
    points = [each.curves["patience"].points for each in seeds.values()]
    scores = np.array([[point.scores["acc"] for point in row] for row in points])
    layers = np.array([[point.cost.mean_layer for point in row] for row in points])
    assert [layer for layer, _ in curve.points] == pytest.approx(layers.mean(0))
    assert [score.mean for _, score in curve.points] == pytest.approx(scores.mean(0))
    assert [score.deviation for _, score in curve.points] == pytest.approx(scores.std(0, ddof=1))
    full = [each.full.scores["acc"] for each in seeds.values()]
    assert (curve.full.mean, curve.full.deviation) == pytest.approx((np.mean(full), np.std(full, ddof=1)))
    assert curve.area.mean == pytest.approx(np.mean([each.area("patience") for each in seeds.values()]))


def test_seeds_with_other_thresholds_are_averaged_at_each_number_of_layers(seeds: dict[str, Sweep]) -> None:
    curve = next(each for each in compare(seeds) if each.rule == "entropy")
    layers = [layer for layer, _ in curve.points]
    assert layers == sorted(layers)
    for layer, score in curve.points:
        levels = []
        for each in seeds.values():
            points = each.curves["entropy"].points
            around = [(p.cost.mean_layer, p.scores["acc"]) for p in points]
            assert around[0][0] <= layer + 1e-9
            levels.append(np.interp(layer, *zip(*around, strict=True)))
        assert min(levels) - 1e-9 <= score.mean <= max(levels) + 1e-9


def test_one_trace_of_a_model_keeps_its_points(seeds: dict[str, Sweep]) -> None:
    first, second, _ = seeds.values()
    curves = compare({"a": first, "b": second})
    assert [(curve.model, curve.rule) for curve in curves[:3]] == [
        ("a", "patience"),
        ("a", "entropy"),
        ("a", "oracle"),
    ]
    points = first.curves["entropy"].points
    assert [layer for layer, _ in curves[1].points] == [point.cost.mean_layer for point in points]
    assert [score.mean for _, score in curves[1].points] == [point.scores["acc"] for point in points]
    assert {score.deviation for _, score in curves[1].points} == {0.0}


def test_other_data_are_not_compared(make_trace: Make) -> None:
    one = sweep(make_trace(50, data="a"), "layer")
    assert compare({"x": one}) == ()
    assert compare({"x": one, "y": sweep(make_trace(50, data="b"), "layer")}) == ()
    assert compare({"x": one, "y": sweep(make_trace(60, data="a"), "layer")}) == ()
    assert len(compare({"x": one, "y": sweep(make_trace(50, data="a", seed=1), "layer")})) == 2
