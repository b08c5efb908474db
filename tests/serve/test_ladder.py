"""The ladder bends one rung at a time, never past what is proven, and does not flap."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.errors import BadPolicy
from offramp.policy import Policy
from offramp.serve.ladder import FULL_DEPTH, Ladder, share_broken


def proven(text: str, **told: Any) -> Policy:
    return replace(Policy.parse(text), certificate={"of": "disagreement", "epsilon": 0.1, **told})


RUNGS = [Policy.parse("entropy:0.1"), proven("entropy:0.2"), proven("entropy:0.3"), proven("entropy:0.4")]


def ladder(**options: float) -> Ladder:
    return Ladder(RUNGS, **{"high": 0.5, "low": 0.1, "fall": 1.0, "rise": 10.0, **options})


def steps(ladder: Ladder, asked: Iterable[tuple[float, float]]) -> list[int]:
    """Rungs for (load, now)."""
    return [ladder.rung(load, now) for load, now in asked]


def test_load_steps_down_one_rung_at_a_time_and_quiet_up_again() -> None:
    down = steps(ladder(), [(0.0, 0), (0.5, 1), (0.9, 1.5), (0.9, 2), (1.0, 3), (1.0, 9)])
    assert down == [0, 1, 1, 2, 3, 3]
    bent = ladder()
    steps(bent, [(0.9, 0), (0.9, 1), (0.9, 2)])
    up = steps(bent, [(0.0, 3), (0.05, 12.9), (0.0, 13), (0.0, 22), (0.0, 23), (0.0, 33), (0.0, 99)])
    assert up == [3, 3, 2, 2, 1, 0, 0]


def test_a_long_quiet_in_which_nobody_asks_counts_whole() -> None:
    bent = ladder()
    steps(bent, [(0.9, 0), (0.9, 1), (0.9, 2), (0.0, 3)])
    assert bent.rung(0.0, 24) == 1


def test_between_the_marks_nothing_moves_and_quiet_begins_anew() -> None:
    bent = ladder()
    assert steps(bent, [(0.9, 0), (0.3, 1), (0.3, 99)]) == [1, 1, 1]
    assert steps(bent, [(0.0, 100), (0.2, 109), (0.0, 110), (0.0, 119), (0.0, 120)]) == [1, 1, 1, 1, 0]


def test_load_that_swings_across_one_mark_does_not_flap() -> None:
    for mark in (0.1, 0.5):
        bent = ladder(fall=0.0)
        bent.rung(0.9, 0)
        rungs = steps(bent, [(mark + (0.01 if tick % 2 else -0.01), tick / 10) for tick in range(1, 500)])
        assert sum(a != b for a, b in pairwise(rungs)) <= 3  # down to the last, if at all


@settings(max_examples=50, deadline=None)
@given(
    asked=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), max_size=60),
    forbidden=st.integers(0, 4),
    when=st.integers(0, 60),
)
def test_no_load_ever_passes_the_last_rung_that_is_allowed(
    asked: list[tuple[float, float]], forbidden: int, when: int
) -> None:
    bent, now = ladder(), 0.0
    for turn, (load, later) in enumerate(asked):
        if turn == when:
            bent.forbid(forbidden)
        now += later
        before = bent.current
        rung = bent.rung(load, now)
        assert rung <= (min(forbidden, 4) - 1 if turn >= when else 3)
        assert rung - before <= 1


def test_a_forbidden_rung_takes_all_that_leave_earlier_with_it() -> None:
    bent = ladder(fall=0.0)
    steps(bent, [(1.0, now) for now in range(9)])
    bent.forbid(2)
    assert bent.rung(1.0, 10) == 1
    bent.forbid(3)
    assert bent.last == 1
    bent.forbid(0)
    assert bent.rung(1.0, 11) == FULL_DEPTH
    assert str(bent.policy(FULL_DEPTH)) == "never"
    assert steps(bent, [(0.0, 12), (0.0, 99)]) == [FULL_DEPTH, FULL_DEPTH]


def test_rungs_are_refused_without_proof_or_order() -> None:
    with pytest.raises(BadPolicy, match="at least the normal policy"):
        Ladder([])
    with pytest.raises(BadPolicy, match=r"rung 1, entropy:0.3, has no certificate.*offramp calibrate"):
        Ladder([RUNGS[1], Policy.parse("entropy:0.3")])
    early, late = proven("entropy:0.4", mean_layer=3.0), proven("entropy:0.2", mean_layer=7.5)
    assert Ladder([RUNGS[0], late, early]).last == 2
    with pytest.raises(BadPolicy, match="rung 2 leaves later than the one before"):
        Ladder([RUNGS[0], early, late])
    with pytest.raises(BadPolicy, match=r"low=0.5 and high=0.5"):
        ladder(low=0.5)


@pytest.mark.parametrize(
    "promise",
    [
        {"promise": "made up"},
        {"of": "disagreement"},
        {"of": "disagreement", "epsilon": {}},
        {"of": "disagreement", "epsilon": 0},
        {"epsilon": 0.1},
    ],
)
def test_a_certificate_that_cannot_be_held_against_answers_is_refused(promise: dict[str, Any]) -> None:
    lax = replace(Policy.parse("entropy:0.4"), certificate=promise)
    with pytest.raises(BadPolicy, match=r"rung 1 does not say how many answers may differ"):
        Ladder([RUNGS[0], lax])


def test_what_proved_wrong_in_one_worker_is_forbidden_in_all_and_in_their_successors(tmp_path: Path) -> None:
    first, second, successor = ladder(), ladder(), ladder()
    share_broken(first, tmp_path)
    assert first.last == len(RUNGS) - 1
    first.forbid(2)
    share_broken(first, tmp_path)
    share_broken(second, tmp_path)
    assert (second.last, second.broken, second.forbidden) == (1, {2}, tuple(RUNGS[2:]))
    second.forbid(1)
    for each in (second, first, successor):
        share_broken(each, tmp_path)
    assert first.last == second.last == successor.last == 0
