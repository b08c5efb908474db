"""Charts as SVG text: a frame with axes, and the marks that are drawn into it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from offramp.report.style import Style

LEFT, RIGHT_EDGE, TOP, BOTTOM = 52, 12, 10, 42


@dataclass(frozen=True)
class Frame:
    """A picture of a size, and the ranges of data that it shows."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Data to pixels."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        inner = self.width - LEFT - RIGHT_EDGE, self.height - TOP - BOTTOM
        return round(LEFT + across * inner[0], 1), round(TOP + (1 - up) * inner[1], 1)

    def draw(
        self, body: str, x_label: str, y_label: str, x_ticks: Sequence[float] | None = None, kind: str = ""
    ) -> str:
        """The whole picture: grid, numbers, labels and what is drawn in it."""
        x_marks = ticks(*self.x) if x_ticks is None else x_ticks
        parts = [self._x_tick(value) for value in x_marks] + [self._y_tick(value) for value in ticks(*self.y)]
        middle_x = (LEFT + self.width - RIGHT_EDGE) / 2
        middle_y = (TOP + self.height - BOTTOM) / 2
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" class="{kind}" role="img">{"".join(parts)}'
            f'<text x="{middle_x}" y="{self.height - 6}" class="label">{escape(x_label)}</text>'
            f'<text transform="translate(12 {middle_y}) rotate(-90)" class="label">{escape(y_label)}</text>'
            f"{body}</svg>"
        )

    def _x_tick(self, value: float) -> str:
        x, bottom = self.at(value, self.y[0])
        return f'<text x="{x}" y="{bottom + 16}" class="tick">{number(value)}</text>'

    def _y_tick(self, value: float) -> str:
        left, y = self.at(self.x[0], value)
        return (
            f'<line x1="{left}" x2="{self.width - RIGHT_EDGE}" y1="{y}" y2="{y}" class="grid"/>'
            f'<text x="{left - 6}" y="{y + 4}" class="tick end">{number(value)}</text>'
        )

    def line(self, points: Iterable[tuple[float, float]], look: Style, kind: str = "line") -> str:
        places = " ".join(f"{x},{y}" for x, y in (self.at(*point) for point in points))
        dashes = f' stroke-dasharray="{" ".join(map(str, look.dashes))}"' if look.dashes else ""
        return f'<polyline points="{places}" stroke="{look.colour}" class="{kind}"{dashes}/>'

    def mark(self, x: float, y: float, look: Style, size: float = 3.5) -> str:
        """A shape of its own for each rule, so that it is told apart without colour."""
        across, down = self.at(x, y)
        return f'<path d="{SHAPES[look.mark](across, down, size)}" fill="{look.colour}"/>'

    def name(self, x: float, y: float, text: str) -> str:
        """Words beside a point."""
        across, down = self.at(x, y)
        return f'<text x="{across + 10}" y="{down + 4}">{escape(text)}</text>'

    def bar(self, x: float, width: float, height: float, colour: str, kind: str = "bar") -> str:
        left, top = self.at(x, height)
        right, bottom = self.at(x + width, self.y[0])
        return (
            f'<rect x="{left}" y="{top}" width="{max(right - left, 0):.1f}" height="{bottom - top:.1f}" '
            f'fill="{colour}" class="{kind}"/>'
        )


def polygon(*corners: tuple[float, float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z"


SHAPES = {
    "o": lambda x, y, r: f"M{x - r} {y}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z",
    "s": lambda x, y, r: polygon((x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)),
    "^": lambda x, y, r: polygon((x - r, y + r), (x + r, y + r), (x, y - r)),
    "D": lambda x, y, r: polygon((x - r, y), (x, y - r), (x + r, y), (x, y + r)),
    "v": lambda x, y, r: polygon((x - r, y - r), (x + r, y - r), (x, y + r)),
    "P": lambda x, y, r: (
        polygon(*((x + a * r, y + b * r) for a, b in ((-1, -0.35), (1, -0.35), (1, 0.35), (-1, 0.35))))
        + polygon(*((x + a * r, y + b * r) for a, b in ((-0.35, -1), (0.35, -1), (0.35, 1), (-0.35, 1))))
    ),
}


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers in a range.

    >>> ticks(0, 12)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    """
    rough = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    return f"{value:g}"
