"""The results of a retrofit, in words and as a table."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import make_certificate

from offramp.errors import CannotLoad
from offramp.guarantees.comparison import Difference, GroupDifferences
from offramp.measuring.changes import Changes
from offramp.measuring.speed import Contender, Speed
from offramp.reports import report
from offramp.reports.results import Megabytes, RetrofitResults, Unseen
from offramp.trace import Trace


def contender(name: str, single: float, batch: float, changed: float = 0) -> Contender:
    speed = Speed(single, batch, single / 2, 3 * single)
    first = Speed(12, 8, 6, 36)
    return Contender(name, {"changed": changed}, {}, 3, speed, speed.times_faster_than(first))


@pytest.fixture
def results() -> RetrofitResults:
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
        asked={"rules": ["entropy"]},
        policy="entropy:0.3",
        certificate=make_certificate(),
        fixed_layer=None,
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
        changes={"exit": (GroupDifferences("layer 0", 100, 4), GroupDifferences("layer 6", 100, 0))},
        megabytes=Megabytes(44, 134, 133),
        machine={"cpu": "a CPU", "machine": "x86", "system": "Linux", "threads": 2, "python": "3.11"},
    )


def test_the_first_line_compares_with_transformers_and_with_full_depth_in_the_same_runtime(
    results: RetrofitResults,
) -> None:
    assert results.verdict()[0] == (
        "4.0 times faster than mine in transformers for one text and 8.0 times faster in batches; 2.0 times faster "
        "than full depth in the same runtime (int8) for one text and 4.0 times faster in batches"
    )


def test_the_rival_is_the_fastest_full_depth_that_keeps_the_guarantee(results: RetrofitResults) -> None:
    original, fp32, int8, exits = results.comparison
    slow_int8 = replace(int8, milliseconds=Speed(12, 8, 6, 36))
    assert "(fp32)" in replace(results, comparison=(original, fp32, slow_int8, exits)).verdict()[0]
    # exits in fp32: int8 counts only if its full depth is proven, however fast it is
    in_fp32 = replace(results, precision="fp32")
    assert "(fp32)" in in_fp32.verdict()[0]
    assert "(int8)" in replace(in_fp32, full_depths=("fp32", "int8")).verdict()[0]


def test_the_verdict_says_where_full_depth_is_as_fast(results: RetrofitResults) -> None:
    assert not any("as fast" in line for line in results.verdict())
    slower = replace(results, comparison=(*results.comparison[:-1], contender("offramp", 7, 1)))
    first, second, *_ = slower.verdict()
    assert (
        "1.2 times slower than full depth in the same runtime (int8) for one text and 4.0 times faster"
        in first
    )
    assert second == "full depth is as fast for one text: there, consider --policy never"
    other_precision = replace(slower, precision="fp32", full_depths=("int8",))
    assert other_precision.verdict()[1] == (
        "full depth in int8 is as fast for one text: there, consider --precision int8"
    )


def test_the_verdict_says_that_one_layer_for_all_is_kept(results: RetrofitResults) -> None:
    full = replace(results, fixed_layer=12, policy="layer:12", exits=(0, 0, 1))
    assert "so all texts run to full depth" in full.verdict()[1]
    assert "so all texts stop at layer 6" in replace(results, fixed_layer=6, policy="layer:6").verdict()[1]


def test_changed_predictions_have_an_interval_and_rare_exits_are_left_out(results: RetrofitResults) -> None:
    lines = "\n".join(results.verdict())
    assert "predictions changed: 4 of 200 test texts, 2.0% (95% interval 0.5 to 5.0%); 4 of 150 " in lines
    assert "distinct test texts, 2.7% (95% interval 0.7 to 6.7%) that occur in no other part" in lines
    assert "exits: 50% at layer 0, 50% at layer 6; 3.00 of 12 layers on average" in lines


def test_queries_are_compared_by_what_was_missed(results: RetrofitResults) -> None:
    rows = [replace(row, losses={"overlap": 0.031, "ndcg": 0.01}) for row in results.comparison]
    certificate = make_certificate(risk="overlap", top_k=5)
    ranked = replace(results, unit="query", comparison=tuple(rows), certificate=certificate)
    assert "on 200 test queries, 3.1% of the top 5 was missed" in ranked.verdict()
    assert "missed %" in ranked.table()
    assert "one query, ms" in ranked.table()


def test_the_table_has_both_denominators_percentiles_and_the_cost_of_a_million(
    results: RetrofitResults,
) -> None:
    rows = {name: cells for name, *cells in results.rows()}
    assert rows["one text, ms"] == ["12.00", "9.00", "6.00", "3.00"]
    assert rows["one text, p50"] == ["6.00", "4.50", "3.00", "1.50"]
    assert rows["one text, p95"] == ["36.00", "27.00", "18.00", "9.00"]
    assert rows["one text, times transformers"] == ["1.0", "1.3", "2.0", "4.0"]
    assert rows["one text, times int8, full depth"] == ["0.5", "0.7", "1.0", "2.0"]
    assert rows["batches, times int8, full depth"] == ["0.5", "0.7", "1.0", "4.0"]
    # 8 ms for a text: a million take 8,000 s
    assert rows["hours, a million texts"][0] == f"{8000 / 3600:.2f}"


def test_the_page_opens_with_model_data_machine_and_date_and_shows_both_predictions(
    results: RetrofitResults,
) -> None:
    changed = (Difference(7, "spam", "ham", 0.9, "win a\nprize " + "x" * 400),)
    blocks = results.blocks(Changes({}, changed, (6,)))
    text = "\n\n".join(map(str, blocks))
    assert text.startswith(
        "mine, made faster\nmodel: mine, 12 layers\ndata: logs.csv (texts: 500 to learn from, 300 to calibrate on, "
        "200 to test on)\nmeasured on 2026-01-01: a CPU, 2 threads, Linux; python 3.11\n4.0 times faster than mine"
    )
    by_exit = next(block for block in blocks if block.heading == "Changed predictions, by exit")
    assert by_exit.rows[1:] == [
        ["layer 0", "100", "4", "4.0", "1.1 to 9.9"],
        ["layer 6", "100", "0", "0.0", "0.0 to 3.6"],
    ]
    texts = next(block for block in blocks if block.heading.startswith("Texts whose prediction changed"))
    assert texts.heading == "Texts whose prediction changed, 1 of 4"
    header, (layer, old, new, shown) = texts.rows
    assert (layer, old, new) == ("6", "spam", "ham")
    assert header[1:3] == ["mine", "now"]
    assert shown.startswith("win a prize xxx")
    assert len(shown) == 300


def test_results_are_read_back_as_they_were(results: RetrofitResults, tmp_path: Path) -> None:
    (tmp_path / "retrofit.json").write_text(json.dumps(results.to_json()))
    assert RetrofitResults.load(tmp_path) == results
    (tmp_path / "retrofit.json").write_text(json.dumps(results.to_json() | {"static_cut": None}))
    with pytest.raises(CannotLoad, match="of another version"):
        RetrofitResults.load(tmp_path)


def test_nothing_runs_off_the_edge_of_a_narrow_page(
    results: RetrofitResults, make_trace: Callable[..., Trace], browser: Any, tmp_path: Path
) -> None:
    changed = tuple(Difference(row, "negative", "positive", 0.9, "long" * 100) for row in range(3))
    trace = make_trace(200, data="logs")
    rules = ["agreement", "entropy", "confidence", "oracle"]
    page = report(trace, rules, opening=results.blocks(Changes({}, changed, (6, 6, 12))))
    page.save(tmp_path)
    browser.set_window_size(500, 900)
    browser.get(f"file://{tmp_path / 'report.html'}")
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('*')].filter(each => each.getBoundingClientRect().right > innerWidth)"
        ".map(each => each.outerHTML.slice(0, 200))"
    )
    assert browser.execute_script("return innerWidth") <= 500
    assert beyond == []
    assert browser.find_element("tag name", "h2").text == "mine, made faster"
