"""The report as text: blocks of lines and tables, and what each rule saves at what loss."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offramp.measuring import Curve, Point, Sweep
from offramp.measuring.curve import MeanCurve, Spread
from offramp.policy.text import round_threshold
from offramp.reports.sections import Section
from offramp.wording import count

POINTS_LOST = (0.5, 1.0, 2.0)
"""The losses that the cost of a rule is shown at."""
NONE = "-"


@dataclass(frozen=True)
class Block:
    """A part of a report: lines, then a table."""

    heading: str
    lines: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """A header, then the rows; empty for no table."""

    def __str__(self) -> str:
        table = [format_table(self.rows)] if self.rows else []
        return "\n\n".join(["\n".join([self.heading, *self.lines]), *table])


def report_text(sections: Sequence[Section]) -> str:
    return "\n\n\n".join(
        f"{section.name}\n{summary_line(section.sweep)}\n\n"
        f"{format_table(rule_rows(section))}\n\n{format_table(exit_rows(section.sweep))}"
        for section in sections
    )


def points_text(section: Section) -> str:
    """A table of the thresholds of each rule of a section."""
    parts = [f"{section.name}\n{summary_line(section.sweep)}"]
    for rule, curve in section.sweep.curves.items():
        rows = [
            [
                threshold_text(point.threshold),
                *map(percent, point.scores.values()),
                f"{point.cost.mean_layer:.2f}",
                percent(point.cost.saved_fraction),
            ]
            for point in curve.points
        ]
        header = ["threshold", *section.sweep.metrics, "mean layer", "layers saved"]
        elue = f", ELUE score {section.elue[rule]:+.2f}" if section.elue else ""
        parts.append(f"{rule}{elue}\n{format_table([header, *rows])}")
    return "\n\n".join(parts)


def summary_line(sweep: Sweep) -> str:
    """The size of the data and the model, and the score of full depth."""
    full = sweep.full
    interval = f" [{percent(full.interval[0])}, {percent(full.interval[1])}]" if full.interval else ""
    parts = [
        f"{count(sweep.examples, 'example')}, {count(full.cost.depth, 'layer')}, {count(len(sweep.layers), 'exit')}",
        f"full depth: {sweep.headline} {percent(sweep.score(full))}{interval}",
    ]
    if sweep.not_finite:
        parts.append(f"{count(sweep.not_finite, 'example')} with NaN or infinite logits")
    return "; ".join(parts)


def comparison_rows(curves: Sequence[MeanCurve], headline: str) -> list[list[str]]:
    """A header, then each rule of each model: its area and the score of full depth, over its traces."""
    rows = [
        [curve.model, curve.rule, str(curve.traces), spread_text(curve.area), spread_text(curve.full)]
        for curve in curves
    ]
    return [["model", "rule", "traces", "area", f"{headline} at full depth"], *rows]


def spread_text(value: Spread) -> str:
    """A score in per cent, with its standard deviation if there is one."""
    return percent(value.mean) + (f" ± {percent(value.deviation)}" if value.deviation else "")


def rule_rows(section: Section) -> list[list[str]]:
    """A header, then for each rule the mean layers within a loss and the policy for a loss of one point."""
    sweep = section.sweep
    header = [
        "rule",
        "area",
        *(f"layers, {loss:g} lost" for loss in POINTS_LOST),
        f"{sweep.headline} at half",
        "policy, 1 lost",
        *(["ELUE score"] if section.elue else []),
    ]
    scores = {rule: [f"{score:+.2f}"] for rule, score in section.elue.items()}
    return [header, *(rule_row(sweep, curve) + scores.get(rule, []) for rule, curve in sweep.curves.items())]


def rule_row(sweep: Sweep, curve: Curve) -> list[str]:
    within = [cheapest_within(sweep, curve, loss) for loss in POINTS_LOST]
    half = [sweep.score(point) for point in curve.points if point.cost.layer_ratio >= 2]
    one = cheapest_within(sweep, curve, 1.0)
    return [
        curve.rule,
        percent(sweep.area(curve.rule)),
        *(NONE if point is None else f"{point.cost.mean_layer:.2f}" for point in within),
        percent(max(half)) if half else NONE,
        NONE if one is None or not curve.attainable else policy_text(curve, one),
    ]


def cheapest_within(sweep: Sweep, curve: Curve, loss: float) -> Point | None:
    """The point with the fewest layers whose score is at most this many points below full depth."""
    level = sweep.score(sweep.full) - loss / 100 - 1e-9
    enough = [point for point in curve.points if sweep.score(point) >= level]
    return min(enough, key=lambda point: point.cost.mean_layer, default=None)


def policy_text(curve: Curve, point: Point) -> str:
    """The policy of a point for people, or the name of a rule that no system can run."""
    return short(curve.policy(point)) if curve.attainable else curve.rule


def exit_rows(sweep: Sweep) -> list[list[str]]:
    """A header, then the scores of each exit if every example exited there."""
    scores = {metric: [point.scores[metric] for point in sweep.per_exit] for metric in sweep.metrics}
    return layer_rows(sweep.layers, scores)


def layer_rows(layers: Sequence[int], scores: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """A header, then each metric at each layer."""
    rows = [
        [str(layer), *(percent(values[exit]) for values in scores.values())]
        for exit, layer in enumerate(layers)
    ]
    return [["layer", *scores], *rows]


def percent(score: float) -> str:
    return f"{100 * score:.1f}"


def short(policy: object) -> str:
    """The text form of a policy with four significant digits, for people.

    >>> short("patience:2,tolerance=0.0123456,min_layer=2")
    'patience:2,tolerance=0.01235,min_layer=2'
    """
    return re.sub(
        r"(?<=[:/=])\d+\.\d+(e-?\d+)?", lambda number: threshold_text(float(number[0])), str(policy)
    )


def threshold_text(threshold: float | None) -> str:
    """A threshold for people; close to 1 it keeps more digits, because at 1 no example exits.

    >>> threshold_text(0.47421875), threshold_text(0.99996), threshold_text(3.0), threshold_text(None)
    ('0.4742', '0.99996', '3', '-')
    """
    return NONE if threshold is None else f"{round_threshold(threshold):.15g}"


def shortened(text: str, most: int) -> str:
    """Text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """A header and rows in columns, numbers to the right and text to the left."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(is_number(cell) for cell in column[1:]) for column in columns]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(cells).rstrip()

    header, *body = rows
    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, body)])


def is_number(cell: str) -> bool:
    return cell == NONE or cell.replace(".", "", 1).isdigit()
