"""Measures the server's audit: false alarms where a certificate holds, and how soon one that does not is found.

    python benchmarks/audit.py [--runs 150]

Simulates the losses of examples whose certificate allows 2%, with delta 5%, and adds them to the account of a rung as
the server does. For comparison, `blocks` is how accounts were kept in the first version of the server: one for each
worker, begun anew at each start, which counts repeats, and tests the total and blocks of 1,000 examples. Takes two
minutes on one core. Prints a table.
"""

import argparse
import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import log
from statistics import median

from shared import about, markdown

from offramp.guarantees.sequential import evidence
from offramp.serve.account import ALL, Account, Comparison

EPSILON, DELTA = 0.02, 0.05
GOOD = 0.01
"""The mean loss of a good past."""
PAST, FUTURE = 20_000, 20_000
PASTS = 15
"""How many good pasts the runs begin with, in turn."""
WORKERS, DAYS = 16, 30
BLOCK = 1000

Losses = Iterable[tuple[int, float]]
"""The number of the text and the loss of each example."""


@dataclass
class Blocks:
    """How one worker tested until it ended: half of delta for the total, half for all blocks together."""

    examined: int = 0
    lost: float = 0.0
    before: tuple[int, float] = (0, 0.0)
    """The total when the current block began."""
    blocks: int = 1

    def breaks(self, text: int, loss: float) -> bool:
        if self.examined - self.before[0] == BLOCK:
            self.before = self.examined, self.lost
            self.blocks += 1
        self.examined += 1
        self.lost += loss
        of_block = DELTA / 2 / (self.blocks * (self.blocks + 1))
        return is_above(self.examined, self.lost, DELTA / 2) or is_above(
            self.examined - self.before[0], self.lost - self.before[1], of_block
        )


def is_above(examined: int, lost: float, delta: float) -> bool:
    return lost > EPSILON * examined and evidence(lost, examined, EPSILON) >= -log(delta)


class Shared:
    """The account of all workers."""

    def __init__(self) -> None:
        self.account = Account({ALL: EPSILON}, DELTA)

    def breaks(self, text: int, loss: float) -> bool:
        self.account.add(Comparison(str(text), {ALL: loss}, 0.0))
        return bool(self.account.broken)


Start = Callable[[], Blocks | Shared]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=150)
    runs = parser.parse_args().runs
    print(about(runs=runs))
    print(markdown(["", "blocks", "now"], [*false_alarms(runs), *delays(runs)]))


def false_alarms(runs: int) -> Iterator[list[str]]:
    at_bound, lower = partial(losses, mean=EPSILON), partial(repeated, mean=0.014)
    cases: dict[str, tuple[int, int, Callable[[int], Losses]]] = {
        "one worker, 5,000 audited": (1, 5000, at_bound),
        f"{WORKERS} workers, 600 audited by each": (WORKERS, 600, at_bound),
        f"a restart on each of {DAYS} days, 200 audited on each": (DAYS, 200, at_bound),
        "loss 1.4%, each text sent 50 times in a row, 10,000 audited": (1, 10_000, partial(lower, times=50)),
        "loss 1.4%, each text sent 500 times in a row, 10,000 audited": (
            1,
            10_000,
            partial(lower, times=500),
        ),
    }
    for name, (parts, number, draw) in cases.items():
        old = sum(ever_broken([Blocks() for _ in range(parts)], draw(seed), number) for seed in range(runs))
        new = sum(ever_broken([Shared()] * parts, draw(seed), number) for seed in range(runs))
        yield [f"false alarms, {name}", f"{old / runs:.1%}", f"{new / runs:.1%}"]


def losses(seed: int, mean: float) -> Iterator[tuple[int, float]]:
    draw = random.Random(seed)
    text = 0
    while True:
        text += 1
        yield text, float(draw.random() < mean)


def repeated(seed: int, mean: float, times: int) -> Iterator[tuple[int, float]]:
    """The audited requests, one of 100, if each text is sent so many times in a row."""
    draw = random.Random(f"{seed} {times}")
    for text, loss in losses(seed, mean):
        for _ in range(times):
            if draw.random() < 0.01:
                yield text, loss


def ever_broken(parts: list[Blocks] | list[Shared], stream: Losses, number: int) -> bool:
    """`number` examples for each part."""
    rows = iter(stream)
    return any(part.breaks(*next(rows)) for part in parts for _ in range(number))


def delays(runs: int) -> Iterator[list[str]]:
    starts: list[Start] = [Blocks, Shared]
    for mean in (0.03, 0.04, 0.06):
        yield [
            f"audited until a loss of {mean:.0%} is found, from the start (median)",
            *(delay([start], mean, runs) for start in starts),
        ]
    pasts = [[past(start, seed) for seed in range(PASTS)] for start in starts]
    for mean in (0.03, 0.04, 0.06):
        yield [
            f"the same, after {PAST:,} with a loss of {GOOD:.0%}: {mean:.0%}",
            *(delay([lambda old=old: copy.deepcopy(old) for old in each], mean, runs) for each in pasts),  # type: ignore[misc]
        ]


def past(start: Start, seed: int) -> Blocks | Shared:
    """After a good past; the rare ones with a false alarm are not used."""
    for attempt in range(100):
        test, rows = start(), losses(1000 * seed + attempt, GOOD)
        if not any(test.breaks(-text, loss) for text, loss in (next(rows) for _ in range(PAST))):
            return test
    raise AssertionError("too many false alarms")


def delay(starts: list[Start], mean: float, runs: int) -> str:
    found = []
    for run in range(runs):
        test, rows = starts[run % len(starts)](), losses(run, mean)
        hit = next((n for n in range(1, FUTURE + 1) if test.breaks(*next(rows))), None)
        found.append(hit or FUTURE + 1)
    within = sum(each <= FUTURE for each in found) / runs
    middle = f"{median(found):,.0f}" if within > 0.5 else f"more than {FUTURE:,}"
    return middle if within == 1 else f"{middle}; {within:.0%} within {FUTURE:,}"


if __name__ == "__main__":
    main()
