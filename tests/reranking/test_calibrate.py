"""The guarantee about the top k, on made-up traces."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offramp.errors import BadData, BadOption, NoSafeThreshold
from offramp.guarantees.losses import Reference
from offramp.policy.ranking import RankRule
from offramp.reranking.calibrate import (
    GRID,
    QuerySet,
    RankGuarantee,
    calibrate_ranking,
    fit,
    ranking_losses,
    reference_ranks,
)
from offramp.trace import Trace


def made_up(queries: int, documents: int = 20, seed: int = 0, **fields: Any) -> tuple[Trace, Any]:
    """Scores of four exits that come nearer to the last one's; and the query of each row, in no order."""
    rng = np.random.default_rng(seed)
    rows = queries * documents
    last = rng.normal(0, 2, (rows, 1))
    noise = rng.normal(0, 1, (rows, 4)) * [3, 1, 0.3, 0]
    logits = ((last + noise) * [0.2, 0.5, 1.5, 1] + [1, 2, -1, 0]).astype(np.float32)[..., None]
    basics = {"labels": None, "lengths": np.ones(rows), "ids": np.arange(rows), "problem": "regression"}
    trace = Trace(logits, (0, 2, 4, 6), **{**basics, "data": "made up", "fingerprint": "no model", **fields})
    return trace, rng.permutation(np.repeat(np.arange(queries), documents))


def test_the_fit_finds_the_scale_of_each_exit() -> None:
    trace, queries = made_up(400)
    rule = fit(QuerySet.group(trace, queries), 10)
    margins = [by_margin for _, by_margin, _ in rule.coefficients]
    assert 0 < margins[0] < margins[1] < margins[2]
    assert rule.slopes[2] == pytest.approx(1 / 1.5, abs=0.03)
    estimates = rule.estimate(2, trace.logits[:, 2, 0])
    assert (estimates - trace.logits[:, 3, 0]).mean() == pytest.approx(0, abs=1e-3)


def test_an_exit_that_knows_nothing_gets_the_mean() -> None:
    trace, queries = made_up(10)
    logits = trace.logits.copy()
    logits[:, 0] = 3
    rule = fit(QuerySet.group(Trace(logits, (0, 2, 4, 6), None, trace.lengths, trace.ids), queries), 10)
    assert rule.slopes[0] == 0
    assert rule.intercepts[0] == pytest.approx(logits[:, -1].mean(), abs=1e-4)


def test_queries_are_grouped_whatever_their_order() -> None:
    trace, _ = made_up(1, documents=5)
    found = QuerySet.group(trace, ["b", "a", "b", "c", "a"])
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.trace.ids.tolist() == [0, 2, 1, 4, 3]
    assert found.select(np.array([False, True, True])).trace.ids.tolist() == [1, 4, 3]
    with pytest.raises(BadData, match="2 queries for 5 rows"):
        QuerySet.group(trace, ["a", "b"])


@pytest.mark.parametrize("risk", ["overlap", "ndcg"])
def test_a_certificate_says_what_was_proven(risk: str) -> None:
    trace, queries = made_up(600, precision="int8", max_length=64)
    rule = calibrate_ranking(trace, queries, RankGuarantee(0.05, risk=risk, top_k=5))
    proof = rule.certificate
    assert proof is not None
    assert rule.threshold in GRID
    assert (proof.risk, proof.top_k, proof.examples, proof.fitted_on) == (risk, 5, 480, 120)
    assert proof.observed_risk < 0.05
    conditions = proof.conditions
    assert conditions is not None
    assert conditions.policy == str(rule)
    assert conditions.mean_layer < 6
    assert (conditions.fingerprint, conditions.precision, conditions.max_length) == ("no model", "int8", 64)
    assert "480 queries (made up)" in proof.evidence
    assert "top 5" in proof.promise or "@5" in proof.promise
    assert "5%" in proof.summary
    assert RankRule.from_json(rule.to_json()) == rule


def test_the_guarantee_holds_on_new_queries_with_and_without_exact_top() -> None:
    """Of 20 calibrations, at most 5 % may be wrong; 5 or more would have a probability of 0.3 %."""
    fresh = QuerySet.group(*made_up(1000, seed=999))
    reference = Reference(reference_ranks(fresh, 5), sizes=fresh.sizes, top_k=5)
    target = RankGuarantee(0.05, risk="overlap", top_k=5)
    risks = []
    for seed in range(20):
        rule = calibrate_ranking(*made_up(200, seed=seed), target, seed=seed)
        risks.append(
            [ranking_losses(fresh, rule, reference, "overlap", exact).mean() for exact in (False, True)]
        )
    assert ((np.array(risks) > target.epsilon).sum(0) < 5).all()
    assert np.mean(risks) > 0.005, "the rule is too careful to be tested by this"


def test_the_top_k_is_compared_with_the_reference_if_there_is_one() -> None:
    trace, queries = made_up(300)
    other = np.random.default_rng(5).normal(size=(len(trace), 1))
    opposed, _ = made_up(300, reference=other, reference_name="the original")
    assert calibrate_ranking(trace, queries, RankGuarantee(0.1)).certificate is not None
    with pytest.raises(NoSafeThreshold, match="More queries would not help"):
        calibrate_ranking(opposed, queries, RankGuarantee(0.1))


def test_too_few_queries_are_an_error_that_says_how_many_are_needed() -> None:
    trace, queries = made_up(30)
    with pytest.raises(NoSafeThreshold, match=r"24 queries .*cannot prove .* it takes \d+") as caught:
        calibrate_ranking(trace, queries, RankGuarantee(0.02))
    assert caught.value.examples_needed is not None
    with pytest.raises(BadData, match="not enough queries"):
        calibrate_ranking(*made_up(1), RankGuarantee(0.1))


def test_pairs_that_the_model_was_trained_on_are_refused() -> None:
    trace, queries = made_up(300)
    known = replace(trace, trained_on=np.ones(len(trace), bool))
    with pytest.raises(BadOption, match="was trained on"):
        calibrate_ranking(known, queries, RankGuarantee(0.1))
    with pytest.warns(UserWarning, match="was trained on"):
        assert calibrate_ranking(known, queries, RankGuarantee(0.1), allow_training_rows=True)


def test_not_a_number_in_a_trace_is_named() -> None:
    trace, queries = made_up(9)
    logits = trace.logits.copy()
    logits[:, 1] = np.nan
    bad = Trace(logits, trace.layers, None, trace.lengths, trace.ids, problem="regression")
    with pytest.raises(BadData, match="NaN or infinity for row"):
        calibrate_ranking(bad, queries, RankGuarantee(0.1))


@pytest.mark.parametrize("options", [{"epsilon": 0}, {"delta": 1}, {"risk": "accuracy"}, {"top_k": 0}])
def test_an_impossible_target_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        RankGuarantee(**{"epsilon": 0.1, **options})
