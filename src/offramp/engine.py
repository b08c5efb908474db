"""Runs many examples together, and lets each leave at its own exit.

A window of examples is sorted by length and cut into micro-batches. Each stage runs for all of them before
the next begins; whoever the policy lets go leaves, and the rest are packed again: rows and padding that are
no longer needed go, thin micro-batches become one. So micro-batches stay full while examples leave, and a
stage's weights stay in the cache. A single example takes the same way. Nothing is kept between calls, so
threads may share an engine.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from offramp.errors import BadOption
from offramp.policy import Decision, Policy
from offramp.stages import Array, Stages, Tokens

WINDOW = 1024
LARGEST_WINDOW = 64
"""In full micro-batches: a window holds the hidden states of all its examples, so long texts end it."""

Said = tuple[Array, Array | None]
"""Logits (rows, labels) and gates (rows,) of one micro-batch at one exit."""


class Group(NamedTuple):
    """A micro-batch."""

    rows: Array  # (rows,) which examples
    lengths: Array  # (rows,) in tokens, rising
    state: Any  # the runtime's


class Engine:
    """Stages, and how much they get at once.

    `window` examples run together, fewer if they are long; `budget` is how many tokens, padding included,
    a micro-batch may hold, by default what suits the stages. A single longer example still runs.
    """

    def __init__(self, stages: Stages[Any], window: int = WINDOW, budget: int | None = None) -> None:
        self.stages = stages
        self.window = window
        self.budget = stages.budget if budget is None else budget
        if self.window < 1 or self.budget < 1:
            raise BadOption(f"window={window} and budget={budget} must be at least 1.")

    def run(self, examples: Sequence[Tokens], policy: Policy, until: float | Array = math.inf) -> Decision:
        """Exit and answer of each example, the same that `policy.decide` has from the logits of all exits.

        Exits that cannot matter under the policy are not asked, and `finite` does not speak of those.
        `until` is a moment of `time.monotonic()`, one for all or one for each example; from then on whoever
        has passed an exit leaves with what it said.
        """
        decision = Decision(
            exits=np.empty(len(examples), np.int64),
            answers=np.empty((len(examples), len(self.stages.labels)), np.float32),
            finite=np.empty(len(examples), bool),
        )
        moments = np.broadcast_to(until, len(examples))
        for rows in self.windows(examples):
            self.run_window(self.embed(examples, rows), policy, moments, decision)
        return decision

    def trace(self, examples: Sequence[Tokens]) -> tuple[Array, Array | None]:
        """What every exit says: logits (examples, exits, labels), and gates (examples, exits) or None."""
        shape = len(examples), len(self.stages.layers)
        logits = np.empty((*shape, len(self.stages.labels)), np.float32)
        gates: Array | None = None
        for rows in self.windows(examples):
            groups = self.embed(examples, rows)
            order = np.concatenate([group.rows for group in groups])
            for exit in range(shape[1]):
                logits[order, exit], scores = joined(self.run_stage(exit, groups))
                if scores is not None:
                    gates = np.empty(shape, np.float32) if gates is None else gates
                    gates[order, exit] = scores
        return logits, gates

    def windows(self, examples: Sequence[Tokens]) -> Iterator[range]:
        """Rows to run together, in the order given."""
        first, tokens = 0, 0
        for row, example in enumerate(examples):
            if not example.ids:
                raise BadOption(f"example {row} has no tokens; give it at least one.")
            tokens += len(example.ids)
            if row - first == self.window or (tokens > LARGEST_WINDOW * self.budget and row > first):
                yield range(first, row)
                first, tokens = row, len(example.ids)
        if examples:
            yield range(first, len(examples))

    def embed(self, examples: Sequence[Tokens], rows: range) -> list[Group]:
        """A window in micro-batches of like length, before the first stage."""
        lengths = np.array([len(examples[row].ids) for row in rows])
        order = np.argsort(lengths, kind="stable")
        groups = []
        for part in self.neighbours((1, length) for length in lengths[order].tolist()):
            chosen = order[part] + rows.start
            state = self.stages.embed([examples[row] for row in chosen.tolist()])
            groups.append(Group(chosen, lengths[order[part]], state))
        return groups

    def run_window(self, groups: list[Group], policy: Policy, until: Array, decision: Decision) -> None:
        """All stages for a window. With deadlines, `decision` always has what the last exit passed said."""
        layers = self.stages.layers
        rows = np.concatenate([group.rows for group in groups])
        decider = policy.begin(len(rows), layers, self.stages.problem_type)
        hurried = bool((until[rows] < math.inf).any())
        for exit in range(0 if hurried else policy.skippable_exits(layers), len(layers)):
            said = self.run_stage(exit, groups, until if hurried and exit else None)
            if not said:
                return
            if hurried:
                ran = np.concatenate([group.rows for group in groups])
                rows, decider = ran, decider[np.isin(rows, ran)]
            leaving, answers = decider.step(exit, *joined(said))
            left = np.count_nonzero(leaving)
            if not left and not hurried:
                continue
            decision.exits[rows] = exit
            decision.answers[rows] = answers
            decision.finite[rows] = decider.finite
            if left == len(rows):
                return
            rows, decider, groups = rows[~leaving], decider[~leaving], self.pack(groups, ~leaving)

    def run_stage(self, exit: int, groups: list[Group], until: Array | None = None) -> list[Said]:
        """Moves groups on to the exit, in their list, so that old states are freed. Whoever is late stays out."""
        said = []
        waiting, groups[:] = groups[::-1], []
        while waiting:
            group = waiting.pop()
            if until is not None:
                group = self.keep(group, np.flatnonzero(until[group.rows] >= time.monotonic()))
            if len(group.rows):
                state, logits, gates = self.stages.run(exit, group.state)
                groups.append(Group(group.rows, group.lengths, state))
                said.append((logits, gates))
        return said

    def pack(self, groups: list[Group], staying: Array) -> list[Group]:
        """Micro-batches of the rows that stay, thin ones merged."""
        kept, first = [], 0
        for group in groups:
            rows = np.flatnonzero(staying[first : first + len(group.rows)])
            first += len(group.rows)
            if len(rows):
                kept.append(self.keep(group, rows))
        parts = self.neighbours((len(group.rows), int(group.lengths[-1])) for group in kept)
        return [self.merge(kept[part]) for part in parts]

    def keep(self, group: Group, rows: Array) -> Group:
        """Some rows of a micro-batch, by rising index."""
        if len(rows) == len(group.rows):
            return group
        state = self.stages.keep(group.state, rows) if len(rows) else None
        return Group(group.rows[rows], group.lengths[rows], state)

    def merge(self, groups: list[Group]) -> Group:
        if len(groups) == 1:
            return groups[0]
        return Group(
            np.concatenate([group.rows for group in groups]),
            np.concatenate([group.lengths for group in groups]),
            self.stages.merge([group.state for group in groups]),
        )

    def neighbours(self, sizes: Iterable[tuple[int, int]]) -> Iterator[slice]:
        """Which neighbours, given as (rows, longest) with rising lengths, run better as one micro-batch.

        They do if they fit the budget and need less padding than one more call is worth.
        """
        first = rows = longest = count = 0
        for count, (more, longer) in enumerate(sizes, 1):
            padding = rows * (longer - longest)
            if rows and (padding > self.stages.overhead or (rows + more) * longer > self.budget):
                yield slice(first, count - 1)
                first, rows = count - 1, 0
            rows, longest = rows + more, longer
        if count:
            yield slice(first, count)


def joined(said: list[Said]) -> Said:
    """What several micro-batches say at one exit, as of one."""
    if len(said) == 1:
        return said[0]
    logits, gates = zip(*said, strict=True)
    return np.concatenate(logits), None if gates[0] is None else np.concatenate(gates)
