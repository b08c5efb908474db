"""Colours, dashes, marks and hatches of the charts.

Colours are Okabe and Ito's, which colour-blind readers can tell apart, without the yellow, which is too pale on
white. Lines differ in dashes and marks as well, and bars of the same colour in hatches.
"""

from dataclasses import dataclass

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ((), (6, 2), (2, 2), (6, 2, 2, 2), (10, 3), (1, 2))
MARKS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "//", "..", "xx")


@dataclass(frozen=True)
class Style:
    colour: str
    dashes: tuple[int, ...] = ()
    """Lengths of dashes and gaps; empty for a solid line."""
    mark: str = ""
    """A marker in matplotlib's notation; empty for none."""
    hatch: str = ""


RIGHT, WRONG = Style(COLOURS[0]), Style(COLOURS[1])
FRONT, FULL_DEPTH = Style("#808080"), Style("#808080", (2, 3))


def style(index: int) -> Style:
    """The style of the index-th rule. From the seventh on, colours repeat with other dashes, marks and hatches."""
    turn = index // len(COLOURS)
    return Style(
        COLOURS[index % len(COLOURS)],
        DASHES[(index + turn) % len(DASHES)],
        MARKS[(index + turn) % len(MARKS)],
        HATCHES[turn % len(HATCHES)],
    )
