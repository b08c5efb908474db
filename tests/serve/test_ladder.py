"""The ladder moves one rung at a time, never past the last allowed one, and does not flap."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from fakes import certified
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.errors import BadPolicy
from offramp.policy import Policy
from offramp.serve.ladder import FULL_DEPTH, Ladder

RUNGS = [
    Policy.parse("entropy:0.1"),
    certified("entropy:0.2"),
    certified("entropy:0.3"),
    certified("entropy:0.4"),
]


def ladder(**options: float) -> Ladder:
    return Ladder(RUNGS, **{"high": 0.5, "low": 0.1, "fall": 1.0, "rise": 10.0, **options})


def steps(ladder: Ladder, loads: Iterable[tuple[float, float]]) -> list[int]:
    """The rungs after each (load, now)."""
    return [ladder.step(load, now) for load, now in loads]


def test_high_load_steps_down_one_rung_at_a_time_and_low_load_up_again() -> None:
    down = steps(ladder(), [(0.0, 0), (0.5, 1), (0.9, 1.5), (0.9, 2), (1.0, 3), (1.0, 9)])
    assert down == [0, 1, 1, 2, 3, 3]
    moving = ladder()
    steps(moving, [(0.9, 0), (0.9, 1), (0.9, 2)])
    up = steps(moving, [(0.0, 3), (0.05, 12.9), (0.0, 13), (0.0, 22), (0.0, 23), (0.0, 33), (0.0, 99)])
    assert up == [3, 3, 2, 2, 1, 0, 0]


def test_low_load_between_two_steps_counts_in_full() -> None:
    moving = ladder()
    steps(moving, [(0.9, 0), (0.9, 1), (0.9, 2), (0.0, 3)])
    assert moving.step(0.0, 24) == 1


def test_between_low_and_high_nothing_moves_and_the_wait_starts_over() -> None:
    moving = ladder()
    assert steps(moving, [(0.9, 0), (0.3, 1), (0.3, 99)]) == [1, 1, 1]
    assert steps(moving, [(0.0, 100), (0.2, 109), (0.0, 110), (0.0, 119), (0.0, 120)]) == [1, 1, 1, 1, 0]


def test_load_that_swings_across_a_limit_does_not_flap() -> None:
    for limit in (0.1, 0.5):
        moving = ladder(fall=0.0)
        moving.step(0.9, 0)
        rungs = steps(moving, [(limit + (0.01 if tick % 2 else -0.01), tick / 10) for tick in range(1, 500)])
        assert sum(a != b for a, b in pairwise(rungs)) <= 3  # down to the last, if at all


@settings(max_examples=50, deadline=None)
@given(
    loads=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), max_size=60),
    forbidden=st.integers(0, 4),
    when=st.integers(0, 60),
)
def test_no_load_steps_past_the_last_allowed_rung(
    loads: list[tuple[float, float]], forbidden: int, when: int
) -> None:
    moving, now = ladder(), 0.0
    for turn, (load, later) in enumerate(loads):
        if turn == when:
            moving.forbid(forbidden)
        now += later
        before = moving.current
        rung = moving.step(load, now)
        assert rung <= (min(forbidden, 4) - 1 if turn >= when else 3)
        assert rung - before <= 1


def test_forbidding_a_rung_forbids_all_below_it() -> None:
    moving = ladder(fall=0.0)
    steps(moving, [(1.0, now) for now in range(9)])
    moving.forbid(2)
    assert moving.step(1.0, 10) == 1
    moving.forbid(3)
    assert moving.last == 1
    moving.forbid(0)
    assert moving.step(1.0, 11) == FULL_DEPTH
    assert steps(moving, [(0.0, 12), (0.0, 99)]) == [FULL_DEPTH, FULL_DEPTH]


def test_rungs_without_certificate_or_out_of_order_are_refused() -> None:
    with pytest.raises(BadPolicy, match="at least the normal policy"):
        Ladder([])
    with pytest.raises(BadPolicy, match=r"rung 1, entropy:0.3, has no certificate.*offramp calibrate"):
        Ladder([RUNGS[1], Policy.parse("entropy:0.3")])
    early, late = certified("entropy:0.4", mean_layer=3.0), certified("entropy:0.2", mean_layer=7.5)
    assert Ladder([RUNGS[0], late, early]).last == 2
    with pytest.raises(BadPolicy, match="rung 2 exits later than the rung before"):
        Ladder([RUNGS[0], early, late])


def test_a_rung_that_is_allowed_again_is_used_as_before() -> None:
    moving = ladder(fall=0.0)
    moving.forbid(0)
    moving.forbid(2)
    assert moving.reasons == ["certificate", "stricter rung", "certificate", "stricter rung"]
    moving.allow(0)
    assert (moving.current, moving.reasons) == (0, ["", "", "certificate", "stricter rung"])
    assert steps(moving, [(1.0, 1), (1.0, 2), (1.0, 3)]) == [1, 1, 1]
    moving.allow(2)
    assert steps(moving, [(1.0, 4), (1.0, 5), (1.0, 6)]) == [2, 3, 3]
    moving.allow(3)  # it was not forbidden
    assert moving.current == 3
