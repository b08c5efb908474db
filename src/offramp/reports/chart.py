"""A chart as data: series, axes and their ranges. `svg` draws it for the page, `plots` as an image file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from offramp.reports.style import Style

Range: TypeAlias = tuple[float, float]

MARKS = 12
"""About as many points of a line get a mark."""


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
        return max(1, len(self.points) // MARKS)

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
        return [(index, each) for index, each in enumerate(self.series) if not isinstance(each, Band)]


def padded_range(values: Sequence[float]) -> Range:
    """The range of some values, with a margin on both sides."""
    margin = (max(values) - min(values)) * 0.05 or 1.0
    return min(values) - margin, max(values) + margin
