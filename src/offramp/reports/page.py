"""The report as one HTML page that opens offline: it makes no requests, and all text from data is escaped."""

import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from offramp.measuring import Point, Sweep
from offramp.measuring.curve import MeanCurve
from offramp.reports.chart import CSS, Bars, Chart, Drawing, Line, key
from offramp.reports.sections import (
    SHIPPED_NAME,
    Section,
    comparison_chart,
    curves_chart,
    exits_chart,
    histogram_chart,
    position,
    readiness_chart,
)
from offramp.reports.table import (
    Block,
    comparison_rows,
    exit_rows,
    percent,
    policy_text,
    rule_rows,
    short,
    summary_line,
)


def page(
    sections: Sequence[Section], comparison: Sequence[MeanCurve] = (), opening: Sequence[Block] = ()
) -> str:
    compared = comparison_html(sections[0].sweep, comparison) if comparison else ""
    parts = [opening_html(opening), compared, *map(section_html, sections), NOTE if sections else ""]
    names = [block.heading for block in opening[:1]] or [section.name for section in sections]
    script = files("offramp.reports").joinpath("page.js").read_text(encoding="utf-8") if sections else ""
    return document(", ".join(names), "".join(parts), script)


NOTE = """<footer>The thresholds of the curves are chosen on the data that they are scored on.
For a guarantee on new data, calibrate on held-out examples.</footer>
"""


def document(title: str, body: str, script: str = "") -> str:
    """A whole page; `body` and `script` are taken as they are."""
    style = files("offramp.reports").joinpath("page.css").read_text(encoding="utf-8")
    tip = f'<div id="tip" hidden></div>\n<script>{script}</script>\n' if script else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · offramp</title>
<style>{CSS}{style}</style>
</head>
<body>
<main>
{body}</main>
{tip}</body>
</html>
"""


def opening_html(blocks: Sequence[Block]) -> str:
    """The first block has the heading of the section."""
    if not blocks:
        return ""
    parts = [block_html(block, "h3" if index else "h2") for index, block in enumerate(blocks)]
    return f"<section>\n{''.join(parts)}</section>\n"


def block_html(block: Block, tag: str) -> str:
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in block.lines)
    table = f"{table_html(block.rows)}\n" if block.rows else ""
    return f"<{tag}>{escape(block.heading)}</{tag}>\n{lines}{table}"


def comparison_html(sweep: Sweep, curves: Sequence[MeanCurve]) -> str:
    chart = comparison_chart(curves, sweep.full.cost.depth, sweep.headline)
    return f"""<section>
<h2>Comparison</h2>
{chart_html(chart, 900, 420)}
{table_html(comparison_rows(curves, sweep.headline))}
<p class="hint">Means and standard deviations over the traces of a model. Area: mean {escape(sweep.headline)} over
all budgets.</p>
</section>
"""


def section_html(section: Section) -> str:
    sweep = section.sweep
    classes = f"<p>Classes: {escape(', '.join(section.classes))}</p>" if section.classes else ""
    model = f"<p>Model <code>{escape(sweep.fingerprint)}</code></p>" if sweep.fingerprint else ""
    shown = f"{short(section.shipped.policy)}, the {SHIPPED_NAME}" if section.shipped else "point at a curve"
    return f"""<section>
<h2>{escape(section.name)}</h2>
<p class="lead">{escape(summary_line(sweep))}</p>
{classes}{model}
<h3>Score against layers</h3>
{curves_html(section)}
<p class="hint">Point at a curve to see its policy and, below, where its examples exit.
Names switch curves on and off.</p>
<div class="pair">
<figure><figcaption>Where examples exit: <span class="chosen">{escape(shown)}</span></figcaption>
{histogram_html(section)}</figure>
<figure><figcaption>Score of each exit, if every example exited there</figcaption>
{chart_html(exits_chart(sweep), 440, 260)}</figure>
</div>
{readiness_html(section)}
<h3>Rules</h3>
{table_html(rule_rows(section))}
<p class="hint">Area: mean {escape(sweep.headline)} over all budgets. Layers, 0.5 lost: fewest mean layers at a
loss of half a point of {escape(sweep.headline)} against full depth.</p>
<details><summary>Exits as a table</summary>{table_html(exit_rows(sweep))}</details>
</section>
"""


def chart_html(chart: Chart, width: int, height: int) -> str:
    entries = (f"<span>{key(series)}{escape(series.name)}</span>" for _, series in chart.legend)
    return f'<div class="legend">{"".join(entries)}</div>{Drawing(chart, width, height).svg()}'


def curves_html(section: Section) -> str:
    """The chart of all curves; its legend switches them, and every point can be pointed at.

    The first point is shown until then: the shipped policy, or the middle of the first curve.
    """
    sweep, shipped = section.sweep, section.shipped
    chart = curves_chart(sweep, shipped)
    drawing = Drawing(chart, 900, 420)
    entries = "".join(
        f'<label><input type="checkbox" checked data-series="{index}">{key(series)}{escape(series.name)}</label>'
        for index, series in chart.legend
    )

    def target(index: int, series: Line | Bars, point: Point, policy: str) -> dict[str, Any]:
        return {
            "series": index,
            "at": drawing.at(*position(sweep, point)),
            "policy": policy,
            "lines": point_lines(sweep, point),
            "exits": [round(100 * count / sum(point.exits), 2) for count in point.exits],
            "color": series.style.color,
        }

    targets: list[dict[str, Any]] = []
    for index, series in chart.legend:
        if shipped is not None and series.name == SHIPPED_NAME:
            text = f"{short(shipped.policy)}, the {SHIPPED_NAME}"
            targets.insert(0, target(index, series, shipped.point, text))
        elif series.name in sweep.curves:
            curve = sweep.curves[series.name]
            targets += [target(index, series, point, policy_text(curve, point)) for point in curve.points]
    svg = drawing.svg("curves", '<circle r="7" class="ring" hidden/>')
    data = (
        f'<script type="application/json" class="points">{script_json(targets)}</script>' if targets else ""
    )
    return f'<div class="legend">{entries}</div>{svg}{data}'


def point_lines(sweep: Sweep, point: Point) -> list[str]:
    """The text shown at a point."""
    lines = [f"{name} {percent(score)}" for name, score in point.scores.items()]
    if point.interval:
        lines[0] += f" [{percent(point.interval[0])}, {percent(point.interval[1])}]"
    lines.append(f"{point.cost.mean_layer:.2f} layers")
    if point.cost.macs is not None and sweep.full.cost.macs is not None:
        fewer = sweep.full.cost.macs / point.cost.macs
        lines.append(f"{point.cost.macs / 1e6:.4g} million MACs, {fewer:.2f}x fewer")
    lost = 100 * (sweep.score(sweep.full) - sweep.score(point))
    return [*lines, f"{lost:.2f} points lost" if lost > 0 else f"{-lost:.2f} points gained"]


def script_json(data: Any) -> str:
    """JSON that is safe inside a script element, whatever text it contains."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def histogram_html(section: Section) -> str:
    """The histogram of one point; the script redraws its bars for the point that is pointed at."""
    sweep, shipped = section.sweep, section.shipped
    first = {
        rule: curve.points[len(curve.points) // 2] if shipped is None else shipped.point
        for rule, curve in list(sweep.curves.items())[:1]
    }
    return Drawing(replace(histogram_chart(sweep, first), y=(0, 100)), 440, 260).svg("histogram")


def readiness_html(section: Section) -> str:
    if not section.readiness:
        return ""
    charts = [readiness_chart(rule, readiness) for rule, readiness in section.readiness.items()]
    figures = "".join(f"<figure>{chart_html(chart, 440, 220)}</figure>" for chart in charts)
    return (
        "<h3>Right and wrong predictions by readiness</h3>"
        '<p class="hint">What each rule measures at the exits before the last. '
        "The less the two overlap, the better the rule knows when to exit.</p>"
        f'<div class="pair">{figures}</div>'
    )


LONG = 60
"""Characters from which a cell is broken anywhere, so that one word cannot make a table wider than the page."""


def table_html(rows: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(cell_html(cell, tag) for cell in cells)}</tr>"

    header, *body = rows
    return (
        f'<div class="scroll"><table><thead>{row(header, "th")}</thead>'
        f"<tbody>{''.join(row(cells, 'td') for cells in body)}</tbody></table></div>"
    )


def cell_html(cell: str, tag: str) -> str:
    """A policy may be broken after its rule."""
    long = ' class="long"' if len(cell) > LONG else ""
    return f"<{tag}{long}>{escape(cell).replace(':', ':<wbr>')}</{tag}>"
