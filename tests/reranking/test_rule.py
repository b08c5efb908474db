"""The rank rule on numbers: cases computed by hand, and properties of any scores."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offramp.errors import BadPolicy, Incompatible
from offramp.policy.ranking import Ranking, RankRule

ROW = (0.0, 1.0, 0.0)
"""Log-odds of being in the top k that are the margin itself; those of the threshold 0.25 are -1.1."""


def one_list(
    scores: Any, top_k: int = 1, threshold: float = 0.25, exact_top: bool = False, row: Any = ROW
) -> Any:
    """The exits taken by documents with scores (documents, exits), where an estimate is the score itself."""
    scores = np.asarray(scores, np.float64)
    documents, exits = scores.shape
    rule = RankRule(top_k, threshold, (1.0,) * exits, (0.0,) * exits, (row,) * (exits - 1))
    ranking = Ranking(rule, np.array([documents]), np.array([top_k]), exact_top)
    return ranking.decide(scores[..., None]).exits.tolist()


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
    rule = RankRule(1, 0.25, (1, 1), (0, 0), (ROW,))
    scores = np.array([[5, 5], [0, 0], [1, 1], [9, 9], [9, 9], [0, 0]], np.float64)[..., None]
    ranking = Ranking(rule, np.array([2, 1, 3]), np.array([1, 1, 2]))
    assert ranking.decide(scores).exits.tolist() == [0, 0, 1, 0, 0, 0]


SCORES = arrays(np.float32, (9, 3, 1), elements=st.floats(-50, 50, width=32))
WEIGHT = st.floats(-3, 3)
RULES = st.builds(
    lambda threshold, slope, *row: RankRule(3, threshold, (slope, 1, 1), (0.5, 0, 0), (row, ROW)),
    st.floats(0, 0.4),
    st.floats(0, 2),
    WEIGHT,
    WEIGHT,
    WEIGHT,
)


@given(scores=SCORES, rule=RULES, top_k=st.integers(1, 12), exact=st.booleans())
def test_a_smaller_threshold_never_settles_more_at_an_exit(
    scores: Any, rule: RankRule, top_k: int, exact: bool
) -> None:
    def first_exit(threshold: float) -> Any:
        changed = replace(rule, threshold=threshold)
        decider = Ranking(changed, np.array([9]), np.array([top_k]), exact).begin(np.arange(9))
        return decider.step(0, scores[:, 0])[0]

    assert not (first_exit(rule.threshold) & ~first_exit(rule.threshold + 0.09)).any()


@given(scores=SCORES, rule=RULES, top_k=st.integers(1, 12), exact=st.booleans())
def test_a_threshold_of_0_gives_the_order_of_full_depth(
    scores: Any, rule: RankRule, top_k: int, exact: bool
) -> None:
    ranking = Ranking(replace(rule, threshold=0.0), np.array([9]), np.array([top_k]), exact)
    decision = ranking.decide(scores)
    assert (decision.exits == 2).all()
    assert np.array_equal(ranking.scores(decision), scores[:, -1, 0].astype(np.float64))


@given(scores=SCORES, rule=RULES, top_k=st.integers(1, 12), exact=st.booleans(), seed=st.integers(0, 99))
def test_neither_other_lists_nor_the_order_of_documents_change_a_decision(
    scores: Any, rule: RankRule, top_k: int, exact: bool, seed: int
) -> None:
    def exits(logits: Any, sizes: list[int]) -> Any:
        return Ranking(rule, np.array(sizes), np.full(len(sizes), top_k), exact).decide(logits).exits

    order = np.random.default_rng(seed).permutation(9)
    alone = exits(scores, [9])
    assert np.array_equal(exits(scores[order], [9]), alone[order])
    together = exits(np.concatenate([scores[:4], scores, scores[:7]]), [4, 9, 7])
    assert np.array_equal(together[4:13], alone)


def test_a_rule_survives_json() -> None:
    rule = RankRule(5, 0.1, (0.5, 1), (0.1, 0), ((0, 2, -1),))
    assert RankRule.from_json(rule.to_json()) == rule


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 0},
        {"top_k": "10"},
        {"threshold": -1},
        {"threshold": float("nan")},
        {"threshold": None},
        {"slopes": [1]},
        {"slopes": [1, 0.5]},
        {"threshold": 0.5},
        {"coefficients": []},
        {"coefficients": [[1, 2]]},
        {"coefficients": [[1, 2, float("inf")]]},
        {"coefficients": [3]},
        {"intercepts": [float("nan"), 0]},
        {"intercepts": 3},
        {"more": 1},
        {"certificate": {}},
    ],
)
def test_a_damaged_rule_is_refused(change: dict[str, Any]) -> None:
    record = RankRule(5, 0.1, (0.5, 1), (0.1, 0), ((0, 2, -1),)).to_json()
    with pytest.raises(BadPolicy):
        RankRule.from_json(record | change)


def test_a_rule_for_another_model_is_refused() -> None:
    rule = RankRule(5, 0.1, (0.5, 1), (0.1, 0), ((0, 2, -1),))
    rule.check((2, 4), ("relevant",), "regression")
    with pytest.raises(Incompatible, match="2 exits, but the model has 3"):
        rule.check((0, 2, 4), ("relevant",), "regression")
    with pytest.raises(Incompatible, match="3 labels"):
        rule.check((2, 4), ("a", "b", "c"), "single_label_classification")
