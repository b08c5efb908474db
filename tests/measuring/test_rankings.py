"""The guarantee about the top k, on made-up traces."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offramp.errors import BadData, BadOption, NoSafeThreshold
from offramp.measuring import Guarantee, MaxLoss, calibrate, sweep
from offramp.measuring.losses import losses_on
from offramp.measuring.proof import threshold_grid
from offramp.policy import Policy
from offramp.rules.rank import Rank
from offramp.trace import Trace


def guarantee(epsilon: float, top_k: int = 10, risk: str = "overlap") -> Guarantee:
    return Guarantee(epsilon, risk=risk, top_k=top_k)


def made_up(queries: int, documents: int = 20, seed: int = 0, **fields: Any) -> Trace:
    """Lists with scores of four exits that come nearer to the last one's."""
    rng = np.random.default_rng(seed)
    rows = queries * documents
    last = rng.normal(0, 2, (rows, 1))
    noise = rng.normal(0, 1, (rows, 4)) * [3, 1, 0.3, 0]
    logits = ((last + noise) * [0.2, 0.5, 1.5, 1] + [1, 2, -1, 0]).astype(np.float32)[..., None]
    basics = {"labels": None, "lengths": np.ones(rows), "ids": np.arange(rows), "problem": "regression"}
    trace = Trace(logits, (0, 2, 4, 6), **{**basics, "data": "made up", "fingerprint": "no model", **fields})
    return trace.grouped(rng.permutation(np.repeat(np.arange(queries), documents)).tolist())


def test_the_fit_finds_the_scale_of_each_exit() -> None:
    trace = made_up(400)
    rule = Rank.fit(trace, 10)
    margins = [by_margin for _, by_margin, _ in rule.coefficients]
    assert 0 < margins[0] < margins[1] < margins[2]
    assert rule.slopes is not None
    assert rule.slopes[2] == pytest.approx(1 / 1.5, abs=0.03)
    estimates = rule.estimate(2, trace.logits[:, 2, 0])
    assert (estimates - trace.logits[:, 3, 0]).mean() == pytest.approx(0, abs=1e-3)


def test_an_exit_that_knows_nothing_gets_the_mean() -> None:
    trace = made_up(10)
    logits = trace.logits.copy()
    logits[:, 0] = 3
    rule = Rank.fit(replace(trace, logits=logits), 10)
    assert rule.slopes is not None
    assert rule.slopes[0] == 0
    assert rule.intercepts[0] == pytest.approx(logits[:, -1].mean(), abs=1e-4)


@pytest.mark.parametrize("risk", ["overlap", "ndcg"])
def test_a_certificate_says_what_was_proven(risk: str) -> None:
    trace = made_up(600, precision="int8", max_length=64)
    policy = calibrate(trace, None, guarantee(0.05, 5, risk)).policy
    proof = policy.certificate
    assert proof is not None
    assert isinstance(policy.rule, Rank)
    assert policy.rule.top_k == 5
    assert policy.threshold in threshold_grid(policy.rule, trace)
    assert (proof.risk, proof.top_k, proof.examples, proof.fitted_on) == (risk, 5, 480, 120)
    assert proof.observed_risk < 0.05
    conditions = proof.conditions
    assert conditions is not None
    assert conditions.policy == str(policy)
    assert conditions.mean_layer < 6
    assert (conditions.fingerprint, conditions.precision, conditions.max_length) == ("no model", "int8", 64)
    assert "480 queries (made up)" in proof.evidence
    assert "top 5" in proof.promise or "@5" in proof.promise
    assert "5%" in proof.summary
    assert Policy.from_json(policy.to_json()) == policy


def test_the_guarantee_holds_on_new_queries_with_and_without_exact_top() -> None:
    """At most 5% of calibrations may be wrong; 5 or more of 20 would have a probability of 0.3%."""
    trace = made_up(1000, seed=999)
    risks = []
    for seed in range(20):
        policy = calibrate(made_up(200, seed=seed), "rank", guarantee(0.05, 5)).policy
        ways = (policy, policy.with_exact_top())
        decided = [way.decide_trace(trace, 5).logits for way in ways]
        risks.append([losses_on(trace, logits, ["overlap"], top_k=5)["overlap"].mean() for logits in decided])
    assert ((np.array(risks) > 0.05).sum(0) < 5).all()
    assert np.mean(risks) > 0.005, "the rule is too careful to be tested by this"


def test_the_top_k_is_compared_with_the_reference_if_there_is_one() -> None:
    trace = made_up(300)
    other = np.random.default_rng(5).normal(size=(len(trace.logits), 1))
    assert calibrate(trace, "rank", guarantee(0.1, 3)).policy.certificate is not None
    with pytest.raises(NoSafeThreshold, match="More queries would not help"):
        calibrate(replace(trace, reference=other, reference_name="the original"), "rank", guarantee(0.1, 3))


def test_too_few_queries_are_an_error_that_says_how_many_are_needed() -> None:
    with pytest.raises(NoSafeThreshold, match=r"24 queries .*cannot prove .* it takes \d+") as caught:
        calibrate(made_up(30), "rank", guarantee(0.02))
    assert caught.value.examples_needed is not None
    with pytest.raises(BadOption, match=r"too few to fit rank .* 1 query, expected at least 10"):
        calibrate(made_up(1), "rank", guarantee(0.1))


def test_pairs_that_the_model_was_trained_on_are_refused() -> None:
    known = made_up(300, trained_on=np.ones(6000, bool))
    with pytest.raises(BadOption, match="was trained on 6000 of the 6000 rows"):
        calibrate(known, "rank", guarantee(0.1))
    with pytest.raises(NoSafeThreshold, match="0 distinct unseen texts"):
        calibrate(known, "rank", guarantee(0.1), allow_training_rows=True)


def test_not_a_number_in_a_trace_is_named() -> None:
    trace = made_up(10)
    logits = trace.logits.copy()
    logits[:, 1] = np.nan
    with pytest.raises(BadData, match="NaN or infinity for row"):
        calibrate(replace(trace, logits=logits), "rank", guarantee(0.1))


def test_any_rule_can_be_calibrated_for_rankings() -> None:
    found = calibrate(made_up(300), ["rank", "layer"], guarantee(0.2, 5))
    assert found.policy.certificate is not None
    assert found.policy.certificate.rules_tried == 2
    static = calibrate(made_up(300), "layer", guarantee(0.2, 5)).policy
    assert (str(static), static.certificate and static.certificate.top_k) == ("layer:4", 5)


def test_lists_and_single_texts_take_targets_of_their_own() -> None:
    trace = made_up(30)
    with pytest.raises(BadOption, match="choose 'overlap' or 'ndcg'"):
        calibrate(trace, "rank", Guarantee(0.1))
    with pytest.raises(BadOption, match="group the trace by query"):
        calibrate(replace(trace, sizes=None), "layer", guarantee(0.1))
    with pytest.raises(BadOption, match="takes a Guarantee"):
        calibrate(trace, "rank", MaxLoss(1.0))
    with pytest.raises(BadOption, match="is for single texts"):
        calibrate(trace, "rank", Guarantee({"a": 0.1}, risk="overlap"))
    with pytest.raises(BadOption, match="trace of lists"):
        sweep(trace, "layer")
    with pytest.raises(BadOption, match="documents of a query"):
        sweep(replace(trace, sizes=None, labels=np.zeros(600)), "rank")
