"""A report shows the numbers of its traces, makes no requests, and escapes every name."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from offramp.measuring import sweep
from offramp.policy import Policy
from offramp.reports import report
from offramp.reports.chart import Drawing, style
from offramp.reports.sections import curves_chart
from offramp.reports.table import format_table, short
from offramp.trace import Trace

Make = Callable[..., Trace]
HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(1)>&$x$'


class Elements(HTMLParser):
    """Every element and attribute of a page, and whether all were closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "input", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_makes_no_requests(make_trace: Make) -> None:
    page = report(make_trace(60), ["entropy", "oracle"]).html()
    assert "http" not in page
    assert "//" not in re.sub(r"\s//.*", "", page)
    elements = Elements(page)
    assert not {"link", "img", "iframe"} & set(elements.tags)
    assert not {"src", "href"} & {name for name, _ in elements.attributes}
    assert not elements.open
    assert "url(" not in page
    assert "@import" not in page


def test_the_page_shows_the_numbers_and_a_policy_for_every_point(make_trace: Make) -> None:
    trace = make_trace(200)
    found = report({"first": trace, "second": make_trace(90, seed=1)}, ["entropy", "patience"])
    words = Elements(found.html()).words
    accuracy = 100 * np.mean(trace.logits[:, -1].argmax(-1) == trace.labels)
    assert f"acc {accuracy:.1f}" in words
    assert "200 examples, 6 layers, 6 exits" in words
    assert "90 examples" in words
    points = json.loads(re.search(r'class="points">(.*?)</script>', found.html()).group(1))
    policies = {point["policy"] for point in points}
    assert {f"patience:{threshold}" for threshold in range(1, 6)} <= policies
    assert len(points) == sum(len(curve.points) for curve in found.sections[0].sweep.curves.values())


def test_hostile_names_are_escaped(make_trace: Make) -> None:
    trace = make_trace(40, label_names=(HOSTILE, "b", "c"), data=HOSTILE, fingerprint=HOSTILE)
    page = report({HOSTILE: trace}, ["entropy"]).html()
    elements = Elements(page)
    assert "img" not in elements.tags
    assert elements.tags.count("script") == 2
    assert not any(name.startswith("on") for name, _ in elements.attributes)
    assert elements.words.count(HOSTILE) >= 3
    assert not elements.open


def test_the_table_has_a_row_for_each_rule_and_each_exit(make_trace: Make) -> None:
    words = str(report({"a name": make_trace(300)}, ["entropy", "layer", "oracle"]))
    lines = words.splitlines()
    assert lines[0] == "a name"
    assert lines[3].split()[:2] == ["rule", "area"]
    assert [line.split()[0] for line in lines[5:8]] == ["entropy", "layer", "oracle"]
    assert re.search(r"entropy:[\d.]+$", lines[5])
    assert lines[7].endswith("-")
    assert [line.split()[0] for line in lines[-6:]] == list("123456")
    assert all(line == line.rstrip() for line in lines)


def test_columns_of_numbers_are_aligned_right() -> None:
    table = format_table([["rule", "area"], ["a", "9.5"], ["long name", "10.25"]])
    assert table.splitlines() == [
        "rule        area",
        "---------  -----",
        "a            9.5",
        "long name  10.25",
    ]


def test_thresholds_are_shown_with_four_digits_and_saved_with_all(make_trace: Make) -> None:
    rule, threshold = "entropy", 0.123456789
    found = report(make_trace(50), [rule], thresholds=[threshold])
    (target,) = json.loads(re.search(r'class="points">(.*?)</script>', found.html()).group(1))
    assert target["policy"] == "entropy:0.1235"
    (point,) = found.to_json()["sections"][0]["sweep"]["curves"][rule]["points"]
    assert point["threshold"] == threshold


def test_a_threshold_below_one_is_not_shown_as_one() -> None:
    assert short("confidence:0.99996/0.9999964") == "confidence:0.99996/0.9999964"


def test_a_rule_without_a_threshold_may_have_options(make_trace: Make) -> None:
    assert "never,max_layer=2" in str(report(make_trace(30), ["never,max_layer=2"]))


def test_page_and_file_draw_the_same_points(make_trace: Make, tmp_path: Path) -> None:
    found = report({"a": make_trace(60)}, ["entropy", "layer"], bootstrap=0)
    found.save(tmp_path, plots=True)
    page, file = found.html(), (tmp_path / "1-a-curves.svg").read_text(encoding="utf-8")
    chart = curves_chart(found.sections[0].sweep)
    names = [series.name for _, series in chart.legend]
    assert names == ["Pareto front", "full depth", "entropy", "layer"]
    drawing = Drawing(chart, 900, 420)
    for _, series in chart.legend:
        pixels = " ".join("{},{}".format(*drawing.at(*point)) for point in series.points)
        assert f'points="{pixels}"' in page
        assert f'points="{pixels}"' in file
    texts = [
        element.text for element in ElementTree.fromstring(file).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert [text for text in texts if text in names] == names


def test_save_writes_page_table_and_json(make_trace: Make, tmp_path: Path) -> None:
    found = report(make_trace(30), ["entropy"])
    assert [path.name for path in found.save(tmp_path)] == ["report.html", "report.json", "report.txt"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == found.html()
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")).keys() == {
        *("sections", "comparison", "opening")
    }
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == f"{found}\n"


def test_plots_are_well_formed_files_without_scripts(make_trace: Make, tmp_path: Path) -> None:
    found = report({HOSTILE: make_trace(60)}, ["entropy", "patience", "layer", "oracle"], bootstrap=20)
    files = [path for path in found.save(tmp_path, plots=True) if path.suffix == ".svg"]
    names = {re.sub(r"^1-script.*alert-1-x-", "", path.stem) for path in files}
    assert names == {"curves", "exits", "histogram", "readiness-entropy"}
    for path in files:
        elements = list(ElementTree.fromstring(path.read_text(encoding="utf-8")).iter())
        assert HOSTILE in [element.text for element in elements]
        assert {element.tag.rpartition("}")[2] for element in elements} <= {
            *("svg", "style", "rect", "text", "g", "line", "polyline", "path")
        }


def test_readiness_counts_every_prediction_before_the_last_exit(make_trace: Make) -> None:
    trace = make_trace(80)
    seen = report(trace, ["confidence", "patience"]).sections[0].readiness
    assert list(seen) == ["confidence"]
    right = trace.logits[:, :-1].argmax(-1) == trace.labels[:, None]
    assert sum(seen["confidence"].right) == right.sum()
    assert sum(seen["confidence"].wrong) == (~right).sum()


def test_traces_without_labels_and_of_every_problem_type_are_reported(
    make_trace: Make, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    blind = make_trace(60, labels=None)
    many = make_trace(
        60, labels=rng.integers(2, size=(60, 3)), problem="multi_label_classification", metrics=()
    )
    numbers = make_trace(60, classes=1, labels=rng.normal(size=60), problem="regression", metrics=())
    both = report({"blind": blind, "many": many}, ["confidence", "oracle"], bootstrap=5, points=5)
    assert list(both.sections[0].sweep.curves) == ["confidence"]
    assert list(both.sections[1].sweep.curves) == ["confidence", "oracle"]
    alone = report({"numbers": numbers}, ["patience:1,tolerance=0.5", "layer", "oracle"], bootstrap=5)
    assert "pearson" in str(alone)
    assert alone.save(tmp_path, plots=True)


@pytest.mark.parametrize("gates", [False, True])
@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "multi_label_classification", "regression"]
)
def test_every_problem_type_has_default_rules(problem_type: str, gates: bool, make_trace: Make) -> None:
    rng = np.random.default_rng(0)
    labels = {"regression": rng.normal(size=60), "multi_label_classification": rng.integers(2, size=(60, 3))}
    trace = make_trace(
        60,
        classes=1 if problem_type == "regression" else 3,
        labels=labels.get(problem_type, rng.integers(3, size=60)),
        problem=problem_type,
        metrics=(),
        gates=rng.random((60, 6)) if gates else None,
    )
    curves = report(trace, bootstrap=3, points=5).sections[0].sweep.curves
    names = [rule.split(":")[0] for rule in curves]
    expected = ["agreement", "entropy", "confidence", "margin", "patience", "layer", "oracle"]
    if problem_type == "regression":
        expected = ["agreement", "patience", "layer"]
        assert len({point.cost.mean_layer for point in next(iter(curves.values())).points}) > 1
    assert names == expected + ["gate"] * gates


def test_a_report_holds_the_coefficients_of_a_rule_that_learns(make_trace: Make) -> None:
    found = json.loads(json.dumps(report(make_trace(60), ["agreement"], bootstrap=0).to_json()))
    fitted = found["sections"][0]["sweep"]["curves"]["agreement"]["fitted"]
    assert len(fitted["rule"]["coefficients"]) == 6


def test_a_section_without_rules_is_reported_beside_others(make_trace: Make, tmp_path: Path) -> None:
    found = report({"blind": make_trace(30, labels=None), "seeing": make_trace(30)}, ["oracle"], bootstrap=0)
    page = found.html()
    assert page.count("<section>") == 2
    assert page.count('class="points"') == 1  # the script goes through these, and only these
    assert not Elements(page).open
    found.save(tmp_path, plots=True)


def test_one_exit_and_non_finite_logits_are_reported(make_trace: Make, tmp_path: Path) -> None:
    trace = make_trace(20, exits=1)
    logits = trace.logits.copy()
    logits[0] = np.nan
    found = report(replace(trace, logits=logits), ["entropy", "layer"])
    assert "20 examples, 1 layer, 1 exit" in str(found)
    assert "1 example with NaN or infinite logits" in str(found)
    assert not Elements(found.html()).open
    found.save(tmp_path, plots=True)


def test_the_first_rules_differ_in_color_and_in_shape() -> None:
    looks = [style(index) for index in range(6)]
    assert len({look.color for look in looks}) == len({look.mark for look in looks}) == 6
    assert len({(look.color, look.dashes, look.mark) for look in map(style, range(18))}) == 18


def test_models_are_compared_in_one_chart_with_the_spread_over_seeds(
    make_trace: Make, tmp_path: Path
) -> None:
    names = ["a-seed1", "a-seed2", HOSTILE]
    traces = {name: make_trace(80, seed=seed, data="dev") for seed, name in enumerate(names)}
    found = report(traces, ["entropy"], bootstrap=0)
    rows = [line.split() for line in str(found).splitlines()[:4]]
    assert rows[0][:4] == ["model", "rule", "traces", "area"]
    assert rows[2][:3] == ["a", "entropy", "2"]
    assert "±" in rows[2]
    assert "±" not in rows[3]
    page = found.html()
    assert page.count("<section>") == 4
    assert "img" not in Elements(page).tags
    found.save(tmp_path, plots=True)
    chart = (tmp_path / "comparison.svg").read_text(encoding="utf-8")
    assert (chart.count("<polyline"), chart.count('class="band"')) == (
        4,
        1,
    )  # two lines, and two in the legend


def test_one_trace_is_compared_with_nothing(make_trace: Make, tmp_path: Path) -> None:
    found = report(make_trace(30), ["entropy"], bootstrap=0)
    assert found.comparison_table() == ""
    assert "comparison.svg" not in {path.name for path in found.save(tmp_path, plots=True)}


def test_the_csv_file_has_a_row_for_every_point(make_trace: Make) -> None:
    traces = {HOSTILE: make_trace(40), "blind": make_trace(40, labels=None)}
    found = report(traces, ["patience", "never"], bootstrap=5)
    header, *rows = csv.reader(found.csv().splitlines())
    assert header == ["trace", "rule", "threshold", "mean_layer", "macs", "acc", "agreement", "low", "high"]
    points = [
        (section.name, rule, point)
        for section in found.sections
        for rule, curve in section.sweep.curves.items()
        for point in curve.points
    ]
    assert len(rows) == len(points)
    for row, (name, rule, point) in zip(rows, points, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert (cells["trace"], cells["rule"]) == (name, rule)
        assert cells["threshold"] == ("" if point.threshold is None else str(point.threshold))
        assert float(cells["mean_layer"]) == point.cost.mean_layer
        assert cells["acc"] == (str(point.scores["acc"]) if "acc" in point.scores else "")


def test_elue_scores_are_those_above_the_exits_of_the_reference(make_trace: Make) -> None:
    trace, reference = make_trace(60), make_trace(60, seed=1)
    found = report(trace, ["entropy", "layer"], elue_reference=reference, bootstrap=0)
    exits = sweep(reference, "layer")
    expected = sweep(trace, ["entropy", "layer"]).elue("entropy", exits)
    assert found.sections[0].elue["entropy"] == pytest.approx(expected)
    assert f"{expected:+.2f}" in str(found)
    itself = report(trace, ["layer"], elue_reference=trace, bootstrap=0).sections[0].elue["layer"]
    assert itself == pytest.approx(0)


def test_the_shipped_policy_is_marked_with_its_own_exits_and_as_it_was_fitted(make_trace: Make) -> None:
    calibration, trace = make_trace(400), make_trace(300, seed=1)
    curve = sweep(calibration, "agreement").curves["agreement"]
    shipped = curve.policy(curve.points[len(curve.points) // 3])
    found = report({"test": trace}, ["entropy", "agreement"], shipped=shipped)
    section = found.sections[0]
    expected = shipped.decide_trace(trace).exits
    assert section.shipped is not None
    assert section.shipped.point.exits == tuple(np.bincount(expected, minlength=6))
    assert [*section.sweep.curves] == ["agreement", "entropy"]
    assert section.sweep.curves["agreement"].fitted == replace(shipped, threshold=0.0)

    first = json.loads(re.search(r'class="points">(.*?)</script>', found.html()).group(1))[0]
    assert first["policy"] == f"{short(shipped)}, the shipped policy"
    assert first["exits"] == pytest.approx(100 * np.bincount(expected, minlength=6) / 300, abs=0.01)
    words = Elements(found.html()).words
    assert f"Where examples exit: {short(shipped)}, the shipped policy" in words


@pytest.mark.parametrize(
    "text", ["never", "layer:3", "patience:2,min_layer=2", "entropy:0.3", "entropy:0.1/0.2/0.3/0.3/0.3/0.3"]
)
def test_every_kind_of_policy_can_be_marked(text: str, make_trace: Make) -> None:
    trace, policy = make_trace(100), Policy.parse(text)
    found = report(trace, ["entropy", "layer"], shipped=policy).sections[0].shipped
    assert found is not None
    assert found.point.exits == tuple(np.bincount(policy.decide_trace(trace).exits, minlength=6))


def test_the_shipped_point_is_the_one_that_a_sweep_measures_at_its_threshold(make_trace: Make) -> None:
    trace = make_trace(100)
    (expected,) = sweep(trace, "entropy", [0.3]).curves["entropy"].points
    found = report(trace, ["layer"], shipped=Policy.parse("entropy:0.3")).sections[0].shipped
    assert found is not None
    assert found.point == expected
