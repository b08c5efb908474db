"""The rule `rank` decides like the rank rule with a decider of its own that it replaces."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.lists import Lists
from offramp.policy import Policy
from offramp.policy.ranking import Ranking, RankRule
from offramp.policy.ranking import relevance as score
from offramp.rules.rank import Rank, relevance

EXITS = 4


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Documents in lists, and the numbers of a fitted rule; some logits tie, saturate or are broken."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = np.array(draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)))
    shape = sizes.sum(), EXITS, draw(st.sampled_from([1, 2]))
    logits = random.normal(0, draw(st.sampled_from([0.3, 2.0, 200.0])), shape)
    if draw(st.booleans()):
        logits = logits.round()
    if draw(st.booleans()):
        broken = random.random(shape) < 0.05
        logits[broken] = random.choice([np.nan, np.inf, -np.inf], broken.sum())
    return {
        "logits": logits.astype(draw(st.sampled_from([np.float32, np.float64]))),
        "sizes": sizes,
        "top_k": random.integers(1, 9, len(sizes)),
        "exact_top": draw(st.booleans()),
        "threshold": draw(st.just(0.0) | st.floats(1e-9, 0.49)),
        "fit": {
            "slopes": (*random.normal(1, 0.5, EXITS - 1), 1),
            "intercepts": (*random.normal(0, 1, EXITS - 1), 0),
            "coefficients": random.normal(0, 2, (EXITS - 1, 3)).tolist(),
        },
    }


@settings(max_examples=300)
@given(case=cases())
def test_both_take_the_same_exits_and_give_the_same_scores(case: dict[str, Any]) -> None:
    logits, sizes, top_k = case["logits"], case["sizes"], case["top_k"]
    before = Ranking(RankRule(5, case["threshold"], **case["fit"]), sizes, top_k, case["exact_top"])
    policy = Policy(Rank(5, case["exact_top"], **case["fit"]), case["threshold"])
    lists = Lists.consecutive(sizes, top_k)
    expected, decision = before.decide(logits), policy.decide(logits, lists=lists)
    np.testing.assert_array_equal(decision.exits, expected.exits)
    np.testing.assert_array_equal(decision.finite, expected.finite)
    scores = before.rule.estimate(expected.exits, score(expected.logits)).astype(logits.dtype)
    np.testing.assert_array_equal(relevance(decision.logits), scores)
    assert policy.skippable_exits(range(1, 5), lists) == before.skippable_exits(range(1, 5))
