"""Summary scores of a curve, checked against hand-computed numbers."""

from collections.abc import Callable

import numpy as np
import pytest

from offramp.errors import BadOption
from offramp.measuring import elue_score, sweep
from offramp.trace import Trace

BASELINE = [(1000.0, 80.0), (2000.0, 84.0), (3000.0, 86.0)]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1500.0, 83.0), (2500.0, 85.0)], 0.5),  # the baseline has 82 and 85 there
        ([(1250.0, 82.5), (2000.0, 84.0), (2750.0, 85.0)], (1.5 + 0.0 - 0.5) / 3),
    ],
)
def test_the_elue_score_is_the_mean_height_above_the_baseline(
    points: list[tuple[float, float]], expected: float
) -> None:
    assert elue_score(points, BASELINE) == pytest.approx(expected)


def test_the_order_of_the_baseline_does_not_matter() -> None:
    assert elue_score([(1500.0, 83.0)], BASELINE[::-1]) == 1.0


def test_the_baseline_is_constant_beyond_its_ends() -> None:
    assert elue_score([(500.0, 81.0), (9000.0, 85.0)], BASELINE) == 0.0


def test_a_curve_scores_zero_against_itself(make_trace: Callable[..., Trace]) -> None:
    found = sweep(make_trace(200), "layer")
    performance = found.performance(found.curves["layer"].points)
    assert elue_score(performance, performance) == 0.0
    assert performance[-1].tolist() == pytest.approx([found.full.cost.flops, 100 * found.full.scores["acc"]])


def test_a_sweep_is_scored_against_the_layers_of_another_model(make_trace: Callable[..., Trace]) -> None:
    found, other = sweep(make_trace(200), ["layer", "entropy"]), sweep(make_trace(200, seed=1), "layer")
    assert found.elue("layer", found) == 0.0
    points = found.performance(found.curves["entropy"].points)
    assert found.elue("entropy", other) == elue_score(points, other.performance(other.per_exit))
    assert found.elue("entropy", BASELINE) == elue_score(points, BASELINE)


def test_without_a_shape_flops_are_unknown(make_trace: Callable[..., Trace]) -> None:
    found = sweep(make_trace(20, shape={}), "entropy")
    assert all(point.cost.macs is None for point in found.curves["entropy"].points)
    with pytest.raises(BadOption, match="shape"):
        found.elue("entropy", found)


def test_a_point_gives_the_policy_to_run(make_trace: Callable[..., Trace]) -> None:
    rule = "window:8,shape=side,entropy=0.1,margin=0"
    curve = sweep(make_trace(100), rule).curves[rule]
    assert (
        str(curve.policy(curve.points[2]))
        == f"window:{curve.points[2].threshold:.0f},shape=side,entropy=0.1,margin=0"
    )
    assert np.all(np.diff([point.threshold for point in curve.points]) > 0)
