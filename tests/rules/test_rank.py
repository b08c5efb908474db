"""The rank rule on numbers: cases computed by hand, and properties of any scores."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offramp.errors import BadPolicy, Incompatible
from offramp.lists import Lists
from offramp.policy import Policy
from offramp.problems import REGRESSION, SINGLE_LABEL
from offramp.rules.rank import Rank, relevance

ROW = (0.0, 1.0, 0.0)
"""Log-odds of being in the top k that are the margin itself; those of the threshold 0.25 are -1.1."""


def one_list(
    scores: Any, top_k: int = 1, threshold: float = 0.25, exact_top: bool = False, row: Any = ROW
) -> Any:
    """The exits taken by documents with scores (documents, exits), where an estimate is the score itself."""
    scores = np.asarray(scores, np.float64)
    documents, exits = scores.shape
    rule = Rank(top_k, exact_top, (1.0,) * exits, (0.0,) * exits, (row,) * (exits - 1))
    lists = Lists.consecutive([documents])
    return Policy(rule, threshold).exits(scores[..., None], lists=lists).tolist()


def test_a_document_is_dropped_when_it_is_far_below_the_best_k() -> None:
    # margins at the first exit: 0.5, -0.5, -4.5; at the second those of the first two are 1.5, -1.5
    assert one_list([[5, 7, 9], [4, 4, 9], [0, 0, 9]]) == [1, 1, 0]


def test_a_document_is_dropped_when_many_others_are_better() -> None:
    # the log-odds are minus the logarithm of the place over 1.5: 0.4, -0.3, -0.7, -1, -1.2, and the same for ties
    scores = np.array([[9, 9], [4, 4], [3, 3], [2, 2], [1, 1]])
    assert one_list(scores, row=(0, 0, -1)) == [1, 1, 1, 1, 0]
    assert one_list([*scores, [1, 1]], row=(0, 0, -1)) == [1, 1, 1, 1, 0, 0]


def test_a_document_certain_to_be_in_the_top_k_stops_unless_the_exact_order_is_wanted() -> None:
    scores = [[9, 9, 9], [3, 3, 3], [2, 2, 2], [-9, -9, -9]]
    assert one_list(scores, top_k=2) == [0, 2, 2, 0]
    assert one_list(scores, top_k=2, exact_top=True) == [2, 2, 2, 0]


def test_dropped_documents_keep_their_last_estimate() -> None:
    # the third is dropped with 4; at the second exit the first has the margin 0.75 to that, not 2.75 to the second
    assert one_list([[8, 5.5, 8], [6, 0, 0], [4, 9, 9]]) == [2, 1, 0]


def test_a_list_no_longer_than_k_runs_to_full_depth() -> None:
    scores = [[9, 9, 9], [3, 3, 3]]
    assert one_list(scores, top_k=2) == one_list(scores, top_k=5) == [2, 2]


def test_a_score_that_is_not_a_number_settles_nothing_in_its_list() -> None:
    nan = float("nan")
    assert one_list([[9, 9, 9], [nan, 1, 1], [0, 0, 0]]) == [1, 1, 1]
    assert one_list([[nan, nan, nan], [1, 1, 1]]) == [2, 2]


def test_lists_of_different_length_do_not_affect_one_another() -> None:
    policy = Policy(Rank(1, False, (1, 1), (0, 0), (ROW,)), 0.25)
    scores = np.array([[5, 5], [0, 0], [1, 1], [9, 9], [9, 9], [0, 0]], np.float64)[..., None]
    exits = policy.exits(scores, lists=Lists.consecutive([2, 1, 3], top_k=[1, 1, 2]))
    assert exits.tolist() == [0, 0, 1, 0, 0, 0]


def test_a_text_outside_a_list_runs_to_full_depth_without_the_other_exits() -> None:
    policy = Policy(Rank(1, False, (2, 2, 1), (0, 0, 0), (ROW, ROW)), 0.25)
    decision = policy.decide([[[5.0], [4.0], [3.0]], [[0.0], [0.0], [1.0]]])
    assert decision.exits.tolist() == [2, 2]
    assert decision.logits.tolist() == [[3.0], [1.0]]
    assert policy.skippable_exits([2, 4, 6]) == 2
    assert policy.skippable_exits([2, 4, 6], Lists.consecutive([2, 3])) == 0
    assert policy.skippable_exits([2, 4, 6], Lists.consecutive([2, 3], top_k=3)) == 2


def test_outputs_are_estimates_of_full_depth_whatever_the_number_of_outputs() -> None:
    policy = Policy(Rank(1, False, (2, 1), (0.5, 0), (ROW,)), 0.25)
    lists = Lists.consecutive([3])
    decision = policy.decide([[[5.0], [7.0]], [[4.0], [4.0]], [[0.0], [9.0]]], lists=lists)
    assert decision.exits.tolist() == [1, 1, 0]
    assert decision.logits.tolist() == [[7.0], [4.0], [0.5]]
    two = policy.decide([[[1, 6.0], [0, 7]], [[0, 4], [1, 5]], [[3, 3], [0, 9]]], lists=lists)
    assert two.exits.tolist() == [1, 1, 0]
    assert relevance(two.logits).tolist() == [7.0, 4.0, 0.5]


SCORES = arrays(np.float32, (9, 3, 1), elements=st.floats(-50, 50, width=32))
WEIGHT = st.floats(-3, 3)
POLICIES = st.builds(
    lambda threshold, slope, *row: Policy(Rank(3, False, (slope, 1, 1), (0.5, 0, 0), (row, ROW)), threshold),
    st.floats(0, 0.4),
    st.floats(0, 2),
    WEIGHT,
    WEIGHT,
    WEIGHT,
)


def decide(policy: Policy, logits: Any, sizes: list[int], top_k: int, exact: bool) -> Any:
    policy = policy.with_exact_top() if exact else policy
    return policy.decide(logits, lists=Lists.consecutive(sizes, top_k))


@given(scores=SCORES, policy=POLICIES, top_k=st.integers(1, 12), exact=st.booleans())
def test_a_smaller_threshold_never_settles_more_at_an_exit(
    scores: Any, policy: Policy, top_k: int, exact: bool
) -> None:
    def first_exit(threshold: float) -> Any:
        changed = replace(policy.with_exact_top() if exact else policy, threshold=threshold)
        decider = changed.begin(9, (1, 2, 3), REGRESSION, Lists.consecutive([9], top_k))
        return decider.step(0, scores[:, 0])[0]

    threshold: Any = policy.threshold
    assert not (first_exit(threshold) & ~first_exit(threshold + 0.09)).any()


@given(scores=SCORES, policy=POLICIES, top_k=st.integers(1, 12), exact=st.booleans())
def test_a_threshold_of_0_gives_the_order_of_full_depth(
    scores: Any, policy: Policy, top_k: int, exact: bool
) -> None:
    decision = decide(replace(policy, threshold=0.0), scores, [9], top_k, exact)
    assert (decision.exits == 2).all()
    assert np.array_equal(decision.logits, scores[:, -1])


@given(scores=SCORES, policy=POLICIES, top_k=st.integers(1, 12), exact=st.booleans(), seed=st.integers(0, 99))
def test_neither_other_lists_nor_the_order_of_documents_change_a_decision(
    scores: Any, policy: Policy, top_k: int, exact: bool, seed: int
) -> None:
    def exits(logits: Any, sizes: list[int]) -> Any:
        return decide(policy, logits, sizes, top_k, exact).exits

    order = np.random.default_rng(seed).permutation(9)
    alone = exits(scores, [9])
    assert np.array_equal(exits(scores[order], [9]), alone[order])
    together = exits(np.concatenate([scores[:4], scores, scores[:7]]), [4, 9, 7])
    assert np.array_equal(together[4:13], alone)


FITTED = Policy(Rank(5, False, (0.5, 1), (0.1, 0), ((0, 2, -1),)), 0.1)


def test_a_rule_survives_json_and_its_text_has_no_fitted_numbers() -> None:
    assert Policy.from_json(json.loads(json.dumps(FITTED.to_json()))) == FITTED
    assert str(FITTED) == "rank:0.1,top_k=5"
    assert Policy.parse("rank:0.2").with_fit_of(FITTED) == replace(FITTED, threshold=0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 0},
        {"top_k": "10"},
        {"slopes": [1]},
        {"slopes": [1, 0.5]},
        {"coefficients": []},
        {"coefficients": [[1, 2]]},
        {"coefficients": [[1, 2, float("inf")]]},
        {"coefficients": [3]},
        {"intercepts": [float("nan"), 0]},
        {"intercepts": 3},
        {"more": 1},
    ],
)
def test_a_damaged_rule_is_refused(change: dict[str, Any]) -> None:
    record = FITTED.to_json()
    with pytest.raises(BadPolicy):
        Policy.from_json(record | {"options": record["options"] | change})


def test_a_rule_for_another_model_is_refused() -> None:
    FITTED.check((2, 4), REGRESSION)
    FITTED.check((2, 4), SINGLE_LABEL, outputs=2)
    with pytest.raises(Incompatible, match="fitted for 2 exits and there are 3"):
        FITTED.check((0, 2, 4), REGRESSION)
    with pytest.raises(Incompatible, match="3 labels"):
        FITTED.check((2, 4), SINGLE_LABEL, outputs=3)
    with pytest.raises(Incompatible, match="not fitted"):
        Policy.parse("rank:0.1").check((2, 4), REGRESSION)
    with pytest.raises(Incompatible, match="no example reaches"):
        replace(FITTED, threshold=-0.1).check((2, 4), REGRESSION)
