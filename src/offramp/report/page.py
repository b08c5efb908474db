"""The report as one HTML page that opens offline: no request leaves it, and whatever comes from data is escaped."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from offramp.curves import Point, Sweep
from offramp.report.sections import Readiness, Section
from offramp.report.style import GREY, RIGHT, WRONG, Style, style
from offramp.report.svg import Frame
from offramp.report.table import exit_rows, headline, percent, rule_rows

FULL_DEPTH = Style(GREY, (2, 3), "o")
FRONT = Style(GREY, (), "o")


def page(sections: Sequence[Section]) -> str:
    parts = files("offramp.report")
    names = ", ".join(section.name for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(names)} · offramp</title>
<style>{parts.joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
{"".join(map(section_html, sections))}
<footer>Scores are those of the data that the thresholds were read from. To promise something for other data,
calibrate with a guarantee.</footer>
</main>
<div id="tip" hidden></div>
<script>{parts.joinpath("page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def section_html(section: Section) -> str:
    found = section.sweep
    classes = f"<p>Classes: {escape(', '.join(section.classes))}</p>" if section.classes else ""
    model = f"<p>Model <code>{escape(found.fingerprint)}</code></p>" if found.fingerprint else ""
    return f"""<section>
<h2>{escape(section.name)}</h2>
<p class="lead">{escape(headline(found))}</p>
{classes}{model}
<h3>Score against layers</h3>
{legend(found)}
{curves_chart(found)}
<p class="hint">Point at a curve to see its policy; the bars below show where its examples leave.
Names switch curves on and off.</p>
<div class="pair">
<figure><figcaption>Where examples leave: <span class="chosen">point at a curve</span></figcaption>
{histogram_chart(found)}</figure>
<figure><figcaption>Score of each exit, if everybody left there</figcaption>
{exits_chart(found)}</figure>
</div>
{readiness_html(section)}
<h3>Rules</h3>
{table_html(rule_rows(found))}
<p class="hint">Area: mean {escape(found.headline)} over all budgets. Layers, 0.5 lost: fewest mean layers at a
loss of half a point of {escape(found.headline)} against full depth.</p>
<details><summary>Exits as a table</summary>{table_html(exit_rows(found))}</details>
</section>
"""


def legend(found: Sweep) -> str:
    entries = []
    for index, rule in enumerate(found.curves):
        look = style(index)
        entries.append(
            f'<label><input type="checkbox" checked data-rule="{index}">'
            f'<svg viewBox="0 0 34 12" class="key">{sample(look)}</svg>{escape(rule)}</label>'
        )
    return (
        f'<div class="legend">{"".join(entries)}<span class="full">full depth</span>'
        '<span class="front">Pareto front</span></div>'
    )


def sample(look: Style) -> str:
    """A short piece of a line with its mark."""
    piece = Frame(width=34 + 64, height=12 + 52, x=(0, 1), y=(0, 1))
    shift = '<g transform="translate(-52 -10)">'
    return f"{shift}{piece.line([(0, 0.5), (1, 0.5)], look)}{piece.mark(0.5, 0.5, look)}</g>"


def curves_chart(found: Sweep) -> str:
    points = [point for curve in found.curves.values() for point in curve.points]
    scores = [100 * found.score(point) for point in [*points, found.full]]
    room = (max(scores) - min(scores)) * 0.05 or 1.0
    depth = found.full.cost.depth
    frame = Frame(900, 420, x=(0, depth), y=(min(scores) - room, max(scores) + room))

    def place(point: Point) -> tuple[float, float]:
        return point.cost.mean_layer, 100 * found.score(point)

    full = 100 * found.score(found.full)
    drawn = [
        frame.line([place(point) for _, point in found.front()], FRONT, "wide"),
        frame.line([(0, full), (depth, full)], FULL_DEPTH),
    ]
    targets = []
    for index, (rule, curve) in enumerate(found.curves.items()):
        look = style(index)
        every = max(1, len(curve.points) // 12)
        size = 6.0 if len(curve.points) == 1 else 3.5
        marks = "".join(frame.mark(*place(point), look, size) for point in curve.points[::every])
        if len(curve.points) == 1:
            marks += frame.name(*place(curve.points[0]), rule)
        drawn.append(f'<g data-curve="{index}">{frame.line(map(place, curve.points), look)}{marks}</g>')
        targets += [
            {
                "rule": index,
                "at": frame.at(*place(point)),
                "policy": str(curve.policy(point)) if curve.attainable else rule,
                "lines": describe(found, point),
                "exits": [round(100 * count / found.examples, 2) for count in point.exits],
                "colour": look.colour,
            }
            for point in curve.points
        ]
    drawn.append('<circle r="7" class="ring" hidden/>')
    picture = frame.draw(
        "".join(drawn), f"mean layers (of {depth})", f"{found.headline}, per cent", kind="curves"
    )
    data = f'<script type="application/json" class="points">{embedded(targets)}</script>' if targets else ""
    return f'<div class="scroll">{picture}</div>{data}'


def describe(found: Sweep, point: Point) -> list[str]:
    lines = [f"{name} {percent(score)}" for name, score in point.scores.items()]
    if point.interval:
        lines[0] += f" [{percent(point.interval[0])}, {percent(point.interval[1])}]"
    lines.append(f"{point.cost.mean_layer:.2f} layers, {point.cost.layer_ratio:.2f} times fewer")
    if point.cost.macs is not None:
        lines.append(f"{point.cost.macs / 1e6:.4g} million MACs")
    if point.cost.milliseconds is not None:
        lines.append(f"{point.cost.milliseconds:.3g} ms")
    lost = 100 * (found.score(found.full) - found.score(point))
    return [*lines, f"{lost:.2f} points lost" if lost > 0 else f"{-lost:.2f} points gained"]


def embedded(data: Any) -> str:
    """JSON that no text in it can end early."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def histogram_chart(found: Sweep) -> str:
    frame = Frame(440, 260, x=(-0.6, len(found.layers) - 0.4), y=(0, 100))
    bars = "".join(frame.bar(exit - 0.4, 0.8, 0, GREY, "exit") for exit in range(len(found.layers)))
    labels = "".join(
        f'<text x="{frame.at(exit, 0)[0]}" y="{frame.at(0, 0)[1] + 16}" class="tick">{layer}</text>'
        for exit, layer in enumerate(found.layers)
    )
    body = f'<g class="bars" data-top="{frame.at(0, 100)[1]}">{bars}</g>{labels}'
    return frame.draw(body, "layer of the exit", "examples, per cent", x_ticks=(), kind="histogram")


def exits_chart(found: Sweep) -> str:
    scores = [100 * point.scores[metric] for point in found.per_exit for metric in found.metrics]
    room = (max(scores) - min(scores)) * 0.05 or 1.0
    last = found.layers[-1]
    frame = Frame(
        440, 260, x=(min(found.layers[0], 1) - 0.3, last + 0.3), y=(min(scores) - room, max(scores) + room)
    )
    drawn, names = [], []
    for index, metric in enumerate(found.metrics):
        look = style(index)
        places = [
            (layer, 100 * p.scores[metric]) for layer, p in zip(found.layers, found.per_exit, strict=True)
        ]
        drawn += [frame.line(places, look), *(frame.mark(*place, look) for place in places)]
        names.append(f'<span style="color:{look.colour}">{escape(metric)}</span>')
    every = -(-len(found.layers) // 12)
    chart = frame.draw("".join(drawn), "layer of the exit", "score, per cent", found.layers[::-every][::-1])
    return f'<div class="names">{" ".join(names)}</div>{chart}'


def readiness_html(section: Section) -> str:
    if not section.readiness:
        return ""
    charts = "".join(readiness_chart(rule, seen) for rule, seen in section.readiness.items())
    return (
        "<h3>What the rules saw</h3>"
        f'<p class="hint"><span style="color:{RIGHT}">Filled: right answers.</span> '
        f'<span style="color:{WRONG}">Line: wrong answers.</span> '
        "The less they overlap, the better the rule knows when to leave.</p>"
        f'<div class="pair">{charts}</div>'
    )


def readiness_chart(rule: str, seen: Readiness) -> str:
    right, wrong = (shares(counts) for counts in (seen.right, seen.wrong))
    frame = Frame(440, 220, x=(seen.edges[0], seen.edges[-1]), y=(0, max(*right, *wrong) * 1.05))
    steps = list(zip(seen.edges, seen.edges[1:], strict=False))
    bars = "".join(
        frame.bar(low, high - low, height, RIGHT, "soft")
        for (low, high), height in zip(steps, right, strict=True)
    )
    outline = [
        corner
        for (low, high), height in zip(steps, wrong, strict=True)
        for corner in ((low, height), (high, height))
    ]
    line = frame.line(outline, Style(WRONG, (), "o"))
    return f"<figure>{frame.draw(bars + line, rule, 'answers, per cent')}</figure>"


def shares(counts: Sequence[int]) -> list[float]:
    return [100 * count / max(sum(counts), 1) for count in counts]


def table_html(rows: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    header, *body = rows
    return (
        f'<div class="scroll"><table><thead>{row(header, "th")}</thead>'
        f"<tbody>{''.join(row(cells, 'td') for cells in body)}</tbody></table></div>"
    )
