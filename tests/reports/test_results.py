"""The results of a retrofit, in words and as a table."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from offramp.measuring.comparison import Contender, Speed
from offramp.policy import Certificate
from offramp.reports.results import Megabytes, RetrofitResults, Unseen


def contender(name: str, single: float, batch: float, changed: float = 0) -> Contender:
    speed = Speed(single, batch)
    return Contender(name, {"changed": changed}, {}, 3, speed, speed.times_faster_than(Speed(12, 8)))


@pytest.fixture
def results(make_certificate: Callable[..., Certificate]) -> RetrofitResults:
    return RetrofitResults(
        date="2026-01-01",
        original="mine",
        data="logs.csv",
        unit="text",
        examples={"learn": 500, "calibration": 300, "test": 200},
        runtime="onnx",
        precision="int8",
        kept_because="the only precision tried",
        tuned=False,
        seed=0,
        policy="entropy:0.3",
        certificate=make_certificate(),
        static_cut=None,
        layers=(0, 6, 12),
        exits=(0.5, 0.496, 0.004),
        comparison=(
            contender("transformers", 12, 8),
            contender("fp32, full depth", 9, 6),
            contender("int8, full depth", 6, 4),
            contender("offramp", 3, 1, changed=0.02),
        ),
        unseen=Unseen(150, 4),
        full_depth_bit_equal=None,
        megabytes=Megabytes(44, 134, 133),
    )


def test_the_first_line_compares_with_transformers_and_with_full_depth_in_the_same_runtime(
    results: RetrofitResults,
) -> None:
    assert results.verdict()[0] == (
        "4.0 times faster than mine in transformers for one text and 8.0 times in batches; 2.0 and 4.0 times faster "
        "than full depth in the same runtime (int8)"
    )


def test_the_verdict_says_where_full_depth_is_as_fast(results: RetrofitResults) -> None:
    assert not any("as fast" in line for line in results.verdict())
    slower = replace(results, comparison=(*results.comparison[:-1], contender("offramp", 7, 1)))
    assert "full depth is as fast for one text: there, consider --policy never" in slower.verdict()


def test_changed_predictions_have_an_interval_and_rare_exits_are_left_out(results: RetrofitResults) -> None:
    lines = "\n".join(results.verdict())
    assert "predictions changed: 4 of 200 test texts, 2.0% (95% interval 0.5 to 5.0%); 4 of 150 " in lines
    assert "distinct test texts, 2.7% (95% interval 0.7 to 6.7%) that occur in no other part" in lines
    assert "exits: 50% at layer 0, 50% at layer 6; 3.00 of 12 layers on average" in lines


def test_queries_are_compared_by_what_was_missed(
    results: RetrofitResults, make_certificate: Callable[..., Certificate]
) -> None:
    rows = [replace(row, losses={"overlap": 0.031, "ndcg": 0.01}) for row in results.comparison]
    certificate = make_certificate(risk="overlap", top_k=5)
    ranked = replace(results, unit="query", comparison=tuple(rows), certificate=certificate)
    assert "on 200 test queries, 3.1% of the top 5 was missed" in ranked.verdict()
    assert "missed %" in ranked.table()
    assert "ms, one query" in ranked.table()


def test_results_are_read_back_as_they_were(results: RetrofitResults, tmp_path: Path) -> None:
    (tmp_path / "retrofit.json").write_text(json.dumps(results.to_json()))
    assert RetrofitResults.load(tmp_path) == results
