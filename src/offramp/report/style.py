"""How a rule is drawn, in plots and on the page alike.

Colours are those of Okabe and Ito, which stay apart for the colour-blind, without the yellow that paper swallows.
Lines also differ in dashes and marks, and bars of one colour in hatches, so that all are told apart.
"""

from dataclasses import dataclass

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ((), (6, 2), (2, 2), (6, 2, 2, 2), (10, 3), (1, 2))
MARKS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "//", "..", "xx")
RIGHT, WRONG = COLOURS[0], COLOURS[1]
GREY = "#808080"


@dataclass(frozen=True)
class Style:
    colour: str
    dashes: tuple[int, ...]
    mark: str
    hatch: str = ""


def style(index: int) -> Style:
    """Of the index-th rule; from the seventh on, colours come back with other dashes, marks and hatches."""
    turn = index // len(COLOURS)
    return Style(
        COLOURS[index % len(COLOURS)],
        DASHES[(index + turn) % len(DASHES)],
        MARKS[(index + turn) % len(MARKS)],
        HATCHES[turn % len(HATCHES)],
    )
