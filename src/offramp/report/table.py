"""The report in a terminal: what each rule saves at what loss."""

import re
from collections.abc import Sequence

from offramp.curves import Curve, Point, Sweep
from offramp.report.sections import Section

LOSSES = (0.5, 1.0, 2.0)
NONE = "-"


def text(sections: Sequence[Section]) -> str:
    return "\n\n\n".join(section_text(section) for section in sections)


def section_text(section: Section) -> str:
    return "\n\n".join(
        [
            f"{section.name}\n{headline(section.sweep)}",
            aligned(rule_rows(section.sweep)),
            aligned(exit_rows(section.sweep)),
        ]
    )


def headline(found: Sweep) -> str:
    """The model and the data in one line."""
    full = found.full
    interval = f" [{percent(full.interval[0])}, {percent(full.interval[1])}]" if full.interval else ""
    parts = [
        f"{found.examples} examples, {full.cost.depth} layers, {len(found.layers)} exits",
        f"full depth: {found.headline} {percent(found.score(full))}{interval}",
    ]
    if found.not_finite:
        parts.append(f"{found.not_finite} examples with logits that are not finite")
    return "; ".join(parts)


def rule_rows(found: Sweep) -> list[list[str]]:
    """A header and a row for each rule: mean layers within a loss, and the policy for a loss of one point."""
    header = [
        "rule",
        "area",
        *(f"layers, {loss:g} lost" for loss in LOSSES),
        f"{found.headline} at half",
        "policy, 1 lost",
    ]
    return [header, *(rule_row(found, curve) for curve in found.curves.values())]


def rule_row(found: Sweep, curve: Curve) -> list[str]:
    within = [cheapest_within(found, curve, loss) for loss in LOSSES]
    half = [found.score(point) for point in curve.points if point.cost.layer_ratio >= 2]
    one = cheapest_within(found, curve, 1.0)
    return [
        curve.rule,
        percent(found.area(curve.rule)),
        *(NONE if point is None else f"{point.cost.mean_layer:.2f}" for point in within),
        percent(max(half)) if half else NONE,
        NONE if one is None or not curve.attainable else str(curve.policy(one)),
    ]


def cheapest_within(found: Sweep, curve: Curve, loss: float) -> Point | None:
    """The point of fewest layers that loses at most so many points."""
    level = found.score(found.full) - loss / 100 - 1e-9
    enough = [point for point in curve.points if found.score(point) >= level]
    return min(enough, key=lambda point: point.cost.mean_layer, default=None)


def exit_rows(found: Sweep) -> list[list[str]]:
    """A header and a row for each exit, if everybody left there."""
    rows = [
        [str(layer), *(percent(point.scores[metric]) for metric in found.metrics)]
        for layer, point in zip(found.layers, found.per_exit, strict=True)
    ]
    return [["layer", *found.metrics], *rows]


def percent(score: float) -> str:
    return f"{100 * score:.1f}"


def short(policy: object) -> str:
    """The text form of a policy with four significant digits, for people.

    >>> short("entropy:0.47421875,min_layer=2,class.v1.25000=0.0123456")
    'entropy:0.4742,min_layer=2,class.v1.25000=0.01235'
    """
    return re.sub(r"(?<=[:/=])\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.4g}", str(policy))


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "text"), count(8530, "text")
    ('1 text', '8530 texts')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell: numbers to the right, names to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [all(is_number(cell) for cell in column[1:]) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        return "  ".join(cells).rstrip()

    header, *body = rows
    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, body)])


def is_number(cell: str) -> bool:
    return cell == NONE or cell.replace(".", "", 1).isdigit()
