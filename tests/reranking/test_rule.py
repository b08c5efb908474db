"""The rank rule on numbers: cases computed by hand, and properties of any scores."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offramp.errors import BadPolicy, Incompatible
from offramp.policy.ranking import Ranking, RankRule

INF = np.inf


def one_list(
    scores: Any, top_k: int = 1, threshold: float = 1.0, exact_top: bool = False, spread: float = 1.0
) -> Any:
    """The exits taken by documents with scores (documents, exits), where an estimate is the score itself."""
    scores = np.asarray(scores, np.float64)
    documents, exits = scores.shape
    rule = RankRule(top_k, threshold, (1.0,) * exits, (0.0,) * exits, (*[spread] * (exits - 1), 0.0))
    ranking = Ranking(rule, np.array([documents]), np.array([top_k]), exact_top)
    return ranking.decide(scores[..., None]).exits.tolist()


def test_a_document_is_dropped_when_k_others_are_certainly_better() -> None:
    # at the first exit: [4, 6], [3, 5], [-1, 1]; at the second the first two are [6, 8] and [3, 5]
    assert one_list([[5, 7, 9], [4, 4, 9], [0, 0, 9]]) == [1, 1, 0]


def test_intervals_that_touch_settle_nothing() -> None:
    assert one_list([[2, 2, 2], [0, 0, 0]]) == [2, 2]
    assert one_list([[2.1, 2, 2], [0, 0, 0]]) == [0, 0]


def test_a_document_certain_to_be_in_the_top_k_stops_unless_the_exact_order_is_wanted() -> None:
    scores = [[9, 9, 9], [3, 3, 3], [2, 2, 2], [-9, -9, -9]]
    assert one_list(scores, top_k=2) == [0, 2, 2, 0]
    assert one_list(scores, top_k=2, exact_top=True) == [2, 2, 2, 0]


def test_dropped_documents_keep_their_last_bounds() -> None:
    # the third is dropped below 7 with the bounds [3, 5]; at the second exit the first has [4.5, 6.5], which is above
    # the second's [-1, 1] but not above those
    assert one_list([[8, 5.5, 8], [6, 0, 0], [4, 9, 9]]) == [2, 1, 0]


def test_a_list_no_longer_than_k_runs_to_full_depth() -> None:
    scores = [[9, 9, 9], [3, 3, 3]]
    assert one_list(scores, top_k=2) == one_list(scores, top_k=5) == [2, 2]


def test_a_score_that_is_not_a_number_settles_nothing() -> None:
    nan = float("nan")
    assert one_list([[9, 9, 9], [nan, 1, 1], [0, 0, 0]]) == [1, 1, 0]
    assert one_list([[nan, nan, nan], [1, 1, 1]]) == [2, 2]


def test_lists_of_different_length_do_not_affect_one_another() -> None:
    rule = RankRule(1, 1.0, (1, 1), (0, 0), (1, 0))
    scores = np.array([[5, 5], [0, 0], [1, 1], [9, 9], [9, 9], [0, 0]], np.float64)[..., None]
    ranking = Ranking(rule, np.array([2, 1, 3]), np.array([1, 1, 2]))
    assert ranking.decide(scores).exits.tolist() == [0, 0, 1, 0, 0, 0]


SCORES = arrays(np.float32, (9, 3, 1), elements=st.floats(-50, 50, width=32))
RULES = st.builds(
    lambda threshold, slope, spread: RankRule(3, threshold, (slope, 1, 1), (0.5, 0, 0), (spread, 0.3, 0)),
    threshold=st.floats(0, 5),
    slope=st.floats(0, 2),
    spread=st.floats(0, 4),
)


@given(scores=SCORES, rule=RULES, top_k=st.integers(1, 12), exact=st.booleans())
def test_a_larger_threshold_never_settles_more_at_an_exit(
    scores: Any, rule: RankRule, top_k: int, exact: bool
) -> None:
    def first_exit(threshold: float) -> Any:
        changed = RankRule(3, threshold, rule.slopes, rule.intercepts, rule.spreads)
        decider = Ranking(changed, np.array([9]), np.array([top_k]), exact).begin(np.arange(9))
        return decider.step(0, scores[:, 0])[0]

    assert not (first_exit(rule.threshold + 1) & ~first_exit(rule.threshold)).any()


@given(scores=SCORES, top_k=st.integers(1, 12), exact=st.booleans(), spread=st.floats(0, 4))
def test_an_infinite_threshold_gives_the_order_of_full_depth(
    scores: Any, top_k: int, exact: bool, spread: float
) -> None:
    rule = RankRule(3, INF, (2, 1, 1), (0.5, 0, 0), (spread, 0.3, 0))
    ranking = Ranking(rule, np.array([9]), np.array([top_k]), exact)
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
    rule = RankRule(5, 1.5, (0.5, 1), (0.1, 0), (2, 0))
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
        {"spreads": [-1, 0]},
        {"intercepts": [float("nan"), 0]},
        {"intercepts": 3},
        {"more": 1},
        {"certificate": {}},
    ],
)
def test_a_damaged_rule_is_refused(change: dict[str, Any]) -> None:
    record = RankRule(5, 1.5, (0.5, 1), (0.1, 0), (2, 0)).to_json()
    with pytest.raises(BadPolicy):
        RankRule.from_json(record | change)


def test_a_rule_for_another_model_is_refused() -> None:
    rule = RankRule(5, 1.5, (0.5, 1), (0.1, 0), (2, 0))
    rule.check((2, 4), ("relevant",), "regression")
    with pytest.raises(Incompatible, match="2 exits, but the model has 3"):
        rule.check((0, 2, 4), ("relevant",), "regression")
    with pytest.raises(Incompatible, match="3 labels"):
        rule.check((2, 4), ("a", "b", "c"), "single_label_classification")
