"""A chart as data: series, axes and their ranges. `svg` draws it.

Colors are Okabe and Ito's, which color-blind readers can tell apart, without the yellow, which is too pale on
white. Lines differ in dashes and marks as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Range: TypeAlias = tuple[float, float]

MARKED_POINTS = 12
"""About as many points of a line get a mark."""

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


RIGHT, WRONG = Style(COLORS[0]), Style(COLORS[1])
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
