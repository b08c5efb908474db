"""A chart as data (series, axes and their ranges), and its drawing as SVG text.

Colors are Okabe and Ito's, which color-blind readers can tell apart, without the yellow, which is too pale on
white. Lines differ in dashes and marks as well.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

Range: TypeAlias = tuple[float, float]

MARKED_POINTS = 12
"""About how many points of a line get a mark."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ((), (6, 2), (2, 2), (6, 2, 2, 2), (10, 3), (1, 2))
MARKS = ("circle", "square", "triangle", "diamond", "wedge", "cross")


@dataclass(frozen=True)
class Style:
    color: str
    dashes: tuple[int, ...] = ()
    """Lengths of dashes and gaps; empty for a solid line."""
    mark: str = ""
    """One of `MARKS`; empty for none."""


CORRECT, WRONG = Style(COLORS[0]), Style(COLORS[1])
SHIPPED = Style(COLORS[0], mark="diamond")  # in the color of the first curve, that of its rule
FRONT, FULL_DEPTH = Style("#808080"), Style("#808080", (2, 3))


def style(index: int) -> Style:
    """The style of the index-th rule. From the seventh on, colors repeat with other dashes and marks."""
    turn = index // len(COLORS)
    return Style(
        COLORS[index % len(COLORS)],
        DASHES[(index + turn) % len(DASHES)],
        MARKS[(index + turn) % len(MARKS)],
    )


@dataclass(frozen=True)
class Line:
    """Points joined by a line; a single point has its name beside it."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: Style
    wide: bool = False
    """Wide and pale, behind other lines."""

    @property
    def mark_every(self) -> int:
        """The distance between marked points."""
        return max(1, len(self.points) // MARKED_POINTS)

    @property
    def is_single_point(self) -> bool:
        return len(self.points) == 1 and bool(self.style.mark)


@dataclass(frozen=True)
class Band:
    """A pale area between two lines, such as a confidence interval."""

    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    style: Style


@dataclass(frozen=True)
class Bars:
    """Bars from 0 up, each with its left and right edge."""

    name: str
    edges: tuple[Range, ...]
    heights: tuple[float, ...]
    style: Style
    pale: bool = False


Series: TypeAlias = Line | Band | Bars


@dataclass(frozen=True)
class Chart:
    """Series in the order in which they are drawn, and the axes."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x: Range
    y: Range
    x_ticks: Mapping[float, str] | None = None
    """Text by position; None for round numbers."""

    @property
    def legend(self) -> list[tuple[int, Line | Bars]]:
        """Every series that has a name, with its index."""
        return [(index, series) for index, series in enumerate(self.series) if not isinstance(series, Band)]


def padded_range(values: Sequence[float]) -> Range:
    """The range of some values, with a margin on both sides."""
    margin = (max(values) - min(values)) * 0.05 or 1.0
    return min(values) - margin, max(values) + margin


LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 42
CSS = """\
svg text { fill: currentColor; font-size: 12px; }
.tick { text-anchor: middle; }
.tick.end { text-anchor: end; }
.label { text-anchor: middle; font-size: 13px; }
.grid { stroke: currentColor; stroke-opacity: 0.15; stroke-width: 1; }
.line, .wide { fill: none; stroke-width: 2; stroke-linejoin: round; }
.wide { stroke-width: 9; stroke-opacity: 0.28; stroke-linecap: round; }
.pale { fill-opacity: 0.45; }
.band { fill-opacity: 0.15; }
"""
WIDTH, HEIGHT, HEADER, ROW, COLUMNS = 900, 420, 34, 20, 2
"""Pixels of a file: the chart, the line of its title, a line of its legend; and the columns of the legend."""


def svg_file(title: str, chart: Chart) -> str:
    """An SVG file with a title above the chart and its legend below."""
    entries = [
        f'<svg x="{LEFT + index % COLUMNS * (WIDTH // COLUMNS)}" y="{HEADER + HEIGHT + index // COLUMNS * ROW}" '
        f'width="{WIDTH // COLUMNS}" height="{ROW}">{key_shape(series)}'
        f'<text x="40" y="10">{escape(series.name)}</text></svg>'
        for index, (_, series) in enumerate(chart.legend)
    ]
    height = HEADER + HEIGHT + ROW * -(-len(entries) // COLUMNS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif">\n<style>\n{CSS}</style>\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{WIDTH / 2}" y="22" class="label">{escape(title)}</text>\n'
        f'<svg y="{HEADER}" width="{WIDTH}" height="{HEIGHT}">{Drawing(chart, WIDTH, HEIGHT).svg()}</svg>\n'
        f"{''.join(entries)}\n</svg>\n"
    )


@dataclass(frozen=True)
class Drawing:
    """A chart at a size in pixels."""

    chart: Chart
    width: int
    height: int

    def svg(self, name: str = "", extra: str = "") -> str:
        """The picture, with a CSS class and further elements on top of the series."""
        x_label, y_label = escape(self.chart.x_label), escape(self.chart.y_label)
        middle_x = (LEFT + self.width - RIGHT) / 2
        middle_y = (TOP + self.height - BOTTOM) / 2
        groups = (
            f'<g data-series="{index}">{self._series(series)}</g>'
            for index, series in enumerate(self.chart.series)
        )
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" class="{name}" role="img" '
            f'data-top="{TOP}" data-bottom="{self.height - BOTTOM}">{self._axes()}'
            f'<text x="{middle_x}" y="{self.height - 6}" class="label">{x_label}</text>'
            f'<text transform="translate(12 {middle_y}) rotate(-90)" class="label">{y_label}</text>'
            f"{''.join(groups)}{extra}</svg>"
        )

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Data to pixels."""
        (x0, x1), (y0, y1) = self.chart.x, self.chart.y
        across, up = (x - x0) / ((x1 - x0) or 1), (y - y0) / ((y1 - y0) or 1)
        inner_width, inner_height = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + across * inner_width, 1), round(TOP + (1 - up) * inner_height, 1)

    def _axes(self) -> str:
        left, bottom = self.at(self.chart.x[0], self.chart.y[0])
        x_ticks = self.chart.x_ticks
        if x_ticks is None:
            x_ticks = {value: f"{value:g}" for value in round_numbers(*self.chart.x)}
        parts = [
            f'<text x="{self.at(value, 0)[0]}" y="{bottom + 16}" class="tick">{escape(text)}</text>'
            for value, text in x_ticks.items()
        ]
        for value in round_numbers(*self.chart.y):
            y = self.at(0, value)[1]
            parts.append(
                f'<line x1="{left}" x2="{self.width - RIGHT}" y1="{y}" y2="{y}" class="grid"/>'
                f'<text x="{left - 6}" y="{y + 4}" class="tick end">{value:g}</text>'
            )
        return "".join(parts)

    def _series(self, series: Series) -> str:
        match series:
            case Line(name, points, style):
                drawn = polyline((self.at(*point) for point in points), style, series.wide)
                if style.mark:
                    size = 6.0 if series.is_single_point else 3.5
                    drawn += "".join(mark(*self.at(*p), style, size) for p in points[:: series.mark_every])
                if series.is_single_point:
                    x, y = self.at(*points[0])
                    drawn += f'<text x="{x + 10}" y="{y + 4}">{escape(name)}</text>'
                return drawn
            case Band(x, low, high, style):
                there = [self.at(*point) for point in zip(x, low, strict=True)]
                back = [self.at(*point) for point in zip(x, high, strict=True)][::-1]
                return f'<path d="{polygon(*there, *back)}" fill="{style.color}" class="band"/>'
            case Bars():
                corners = zip(series.edges, series.heights, strict=True)
                return "".join(
                    rectangle(self.at(left, height), self.at(right, 0), series.style, series.pale)
                    for (left, right), height in corners
                )


def key(series: Line | Bars) -> str:
    """The picture of a series in a legend."""
    return f'<svg viewBox="0 0 34 12" class="key">{key_shape(series)}</svg>'


def key_shape(series: Line | Bars) -> str:
    if isinstance(series, Bars):
        return rectangle((9, 1), (25, 11), series.style, series.pale)
    line = polyline([(2, 6), (32, 6)], series.style, series.wide)
    return line + (mark(17, 6, series.style, 3.5) if series.style.mark else "")


def polyline(pixels: Iterable[tuple[float, float]], style: Style, wide: bool = False) -> str:
    points = " ".join(f"{x},{y}" for x, y in pixels)
    dashes = f' stroke-dasharray="{" ".join(map(str, style.dashes))}"' if style.dashes else ""
    return (
        f'<polyline points="{points}" stroke="{style.color}" class="{"wide" if wide else "line"}"{dashes}/>'
    )


def mark(x: float, y: float, style: Style, size: float) -> str:
    return f'<path d="{SHAPES[style.mark](x, y, size)}" fill="{style.color}"/>'


def rectangle(
    top_left: tuple[float, float], bottom_right: tuple[float, float], style: Style, pale: bool
) -> str:
    (left, top), (right, bottom) = top_left, bottom_right
    return (
        f'<rect x="{left}" y="{top}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
        f'fill="{style.color}" class="{"pale" if pale else "bar"}"/>'
    )


def polygon(*corners: tuple[float, float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z"


SHAPES = {
    "circle": lambda x, y, r: f"M{x - r} {y}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z",
    "square": lambda x, y, r: polygon((x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)),
    "triangle": lambda x, y, r: polygon((x - r, y + r), (x + r, y + r), (x, y - r)),
    "diamond": lambda x, y, r: polygon((x - r, y), (x, y - r), (x + r, y), (x, y + r)),
    "wedge": lambda x, y, r: polygon((x - r, y - r), (x + r, y - r), (x, y + r)),
    "cross": lambda x, y, r: (
        polygon(*((x + a * r, y + b * r) for a, b in ((-1, -0.35), (1, -0.35), (1, 0.35), (-1, 0.35))))
        + polygon(*((x + a * r, y + b * r) for a, b in ((-0.35, -1), (0.35, -1), (0.35, 1), (-0.35, 1))))
    ),
}
"""The path of each mark around (x, y)."""


def round_numbers(low: float, high: float, about: int = 6) -> list[float]:
    """Ticks for a range.

    >>> round_numbers(0, 12)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    """
    rough = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]
