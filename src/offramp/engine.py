"""Runs many examples together and lets each one take its own exit.

A window of examples is sorted by length and cut into micro-batches. Each stage runs for all of them before the
next one starts. Examples that are done exit; the rest are repacked: finished rows and excess
padding are dropped, and small micro-batches are merged. Micro-batches therefore stay full while examples exit,
and the weights of a stage stay in the cache. Nothing is kept between calls, so threads may share an engine.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from offramp.errors import BadOption
from offramp.lists import Lists
from offramp.numerics import finite_rows
from offramp.policy import Decider, Decision, Policy
from offramp.problems import Array
from offramp.runtimes import CompiledPolicy, Runtime, Tokens
from offramp.tags import BEGINS, CONTINUES, SPECIAL

WINDOW = 1024
MAX_MICRO_BATCHES = 64
"""Caps memory: a window holds the hidden states of all its examples."""

Outputs = tuple[Array, Array | None]
"""Logits (rows, labels) and gates (rows,) at one exit."""


class MicroBatch(NamedTuple):
    rows: Array  # (rows,) indices of the examples
    lengths: Array  # (rows,) in tokens, increasing
    state: Any  # the runtime's


class Engine:
    """Runs stages in windows and micro-batches.

    `window` is the number of examples that run together, fewer if they are long. `batch_tokens` is the most tokens,
    padding included, in a micro-batch, by default what suits the runtime; a single longer example still runs.
    `word_starts` says for each token of the vocabulary whether it begins a word (`token_kinds`), see `which_count`:
    rules for taggers read these tokens, by default all.
    """

    def __init__(
        self,
        runtime: Runtime[Any],
        window: int = WINDOW,
        batch_tokens: int | None = None,
        word_starts: Array | None = None,
    ) -> None:
        self.runtime = runtime
        self.word_starts = word_starts
        self.window = window
        self.batch_tokens = runtime.batch_tokens if batch_tokens is None else batch_tokens
        if self.window < 1 or self.batch_tokens < 1:
            raise BadOption(f"window={window} and batch_tokens={batch_tokens} must be at least 1.")

    def run(
        self,
        examples: Sequence[Tokens],
        policy: Policy,
        deadline: float | Array = math.inf,
        lists: Lists | None = None,
    ) -> Decision:
        """The exit and logits of each example, the same as `policy.decide` on the logits of all exits.

        Exits that cannot affect the result are skipped, and `finite` does not cover them; where `runtime.compiled`
        decides, `finite` covers only the logits returned. `deadline` is a `time.monotonic()` value, one for all
        examples or one for each. An example past its deadline exits with the logits of the last exit it passed; every
        example passes the first. Examples of one of the `lists` are consecutive, and run in the same window.
        """
        *_, decision = self.steps(examples, policy, deadline, lists)
        return decision

    def steps(
        self,
        examples: Sequence[Tokens],
        policy: Policy,
        deadline: float | Array = math.inf,
        lists: Lists | None = None,
    ) -> Iterator[Decision]:
        """Like `run`; yields the decision after every micro-batch, complete after the last one, so that a caller may
        do other work in between."""
        tokens, compiled = self.tokens_of(examples), self.runtime.compiled
        if (
            lists is not None
            or (deadline is not math.inf and np.any(deadline < math.inf))
            or (tokens is not None and tokens.counts is None)  # the graph knows which tokens count
            or (compiled is not None and not compiled.runs(policy))
        ):
            compiled = None
        if compiled is not None and tokens is None and len(examples) == 1 and examples[0].ids:
            exits, logits = compiled.decide(examples, policy)  # without windows and micro-batches
            yield Decision(exits, logits, finite_rows(logits))
            return
        decision, deadlines = self.undecided(len(examples), tokens), np.full(len(examples), deadline)
        for rows in self.windows(examples, None if lists is None else lists.sizes.tolist()):
            if compiled is None:
                done = self.run_window(examples, rows, policy, deadlines, decision, lists, tokens)
            else:
                done = self.decide_window(compiled, examples, rows, policy, decision, tokens)
            for _ in done:
                yield decision
        yield decision

    def decide_window(
        self,
        compiled: CompiledPolicy,
        examples: Sequence[Tokens],
        rows: range,
        policy: Policy,
        decision: Decision,
        tokens: Lists | None,
    ) -> Iterator[None]:
        """Fills in the decisions of a window, with one call for each micro-batch and step of the iterator."""
        for chosen in self.groups(examples, rows):
            exits, logits = compiled.decide([examples[row] for row in chosen.tolist()], policy)
            parts, finite = chosen, finite_rows(logits)
            if tokens is not None:
                parts = tokens.rows(chosen)
                finite = Lists.consecutive(tokens.sizes[chosen]).total(~finite) == 0
            decision.exits[chosen], decision.logits[parts], decision.finite[chosen] = exits, logits, finite
            yield

    def tokens_of(self, examples: Sequence[Tokens]) -> Lists | None:
        """The tokens of all examples in order, and which of them count; None if they are not tagged."""
        if not self.runtime.info.problem.of_tokens:
            return None
        sizes = np.array([len(example.ids) for example in examples], np.int64)
        if self.word_starts is None or not len(sizes):
            return Lists.consecutive(sizes)
        ids = np.concatenate([example.ids for example in examples])
        return Lists.consecutive(sizes, counts=which_count(self.word_starts[ids], sizes))

    def undecided(self, examples: int, tokens: Lists | None = None) -> Decision:
        """A decision to be filled in."""
        rows = examples if tokens is None else int(tokens.sizes.sum())
        return Decision(
            exits=np.empty(examples, np.int64),
            logits=np.empty((rows, len(self.runtime.info.labels)), np.float32),
            finite=np.empty(examples, bool),
        )

    def trace(self, examples: Sequence[Tokens]) -> Outputs:
        """The outputs of every exit: logits (examples, exits, labels), and gates (examples, exits) or None; if tokens
        are tagged, with a row for each token of all examples, in order."""
        tokens = self.tokens_of(examples)
        number = len(examples) if tokens is None else int(tokens.sizes.sum())
        shape = number, len(self.runtime.info.exits)
        logits = np.empty((*shape, len(self.runtime.info.labels)), np.float32)
        gates: Array | None = None
        for rows in self.windows(examples):
            batches = [*self.embed(examples, rows)]
            order = np.concatenate([batch.rows for batch in batches])
            order = order if tokens is None else tokens.rows(order)
            for exit in range(shape[1]):
                logits[order, exit], scores = concatenate([*self.run_stage(exit, batches)])
                if scores is not None:
                    gates = np.empty(shape, np.float32) if gates is None else gates
                    gates[order, exit] = scores
        return logits, gates

    def windows(self, examples: Sequence[Tokens], sizes: Sequence[int] | None = None) -> Iterator[range]:
        """Consecutive examples to run together. `sizes` are those of lists whose examples are never separated."""
        lengths = [len(example.ids) for example in examples]
        if 0 in lengths:
            raise BadOption(f"example {lengths.index(0)} has no tokens.")
        first = end = tokens = 0
        for size in repeat(1, len(examples)) if sizes is None else sizes:
            more = sum(lengths[end : end + size])
            full = end + size - first > self.window or tokens + more > MAX_MICRO_BATCHES * self.batch_tokens
            if full and end > first:
                yield range(first, end)
                first, tokens = end, 0
            end, tokens = end + size, tokens + more
        if examples:
            yield range(first, end)

    def embed(self, examples: Sequence[Tokens], rows: range) -> Iterator[MicroBatch]:
        """A window as micro-batches of similar length, before the first stage."""
        for chosen in self.groups(examples, rows):
            batch = [examples[row] for row in chosen.tolist()]
            yield MicroBatch(
                chosen, np.array([len(example.ids) for example in batch]), self.runtime.embed(batch)
            )

    def groups(self, examples: Sequence[Tokens], rows: range) -> Iterator[Array]:
        """The rows of each micro-batch of a window, by increasing length."""
        lengths = np.array([len(examples[row].ids) for row in rows])
        order = np.argsort(lengths, kind="stable")
        for part in self.partition((1, length) for length in lengths[order].tolist()):
            yield order[part] + rows.start

    def run_window(
        self,
        examples: Sequence[Tokens],
        window: range,
        policy: Policy,
        deadlines: Array,
        decision: Decision,
        lists: Lists | None,
        tokens: Lists | None,
    ) -> Iterator[None]:
        """Fills in the decisions of a window stage by stage, one micro-batch for each step of the iterator.

        With deadlines no exit is skipped and `decision` is filled in after every one, because any of them may be the
        last.
        """
        batches = []
        for batch in self.embed(examples, window):
            batches.append(batch)
            yield
        rows = np.concatenate([batch.rows for batch in batches])
        layers, decider = self.runtime.info.exits, self.decider(policy, rows, lists, tokens)
        timed = bool((deadlines[rows] < math.inf).any())
        skipped = 0 if timed else policy.skippable_exits(layers, lists)
        for exit in range(skipped, len(layers)):
            outputs = []
            for output in self.run_stage(exit, batches, deadlines if timed and exit else None):
                outputs.append(output)
                yield
            if not outputs:
                return
            if timed:
                in_time = np.concatenate([batch.rows for batch in batches])
                rows, decider = in_time, decider[np.isin(rows, in_time)]
            exiting, logits = decider.step(exit, *concatenate(outputs))
            if not timed and not exiting.any():
                continue
            decision.exits[rows] = exit
            decision.logits[rows if tokens is None else tokens.rows(rows)] = logits
            decision.finite[rows] = decider.finite
            if exiting.all():
                return
            rows, decider, batches = rows[~exiting], decider[~exiting], self.pack(batches, ~exiting)

    def decider(self, policy: Policy, rows: Array, lists: Lists | None, tokens: Lists | None) -> Decider:
        """The policy before the first exit of these examples."""
        if tokens is not None:
            counts = None if tokens.counts is None else tokens.counts[tokens.rows(rows)]
            lists = Lists.consecutive(tokens.sizes[rows], counts=counts)
        elif lists is not None:
            lists = lists[rows]
        return policy.begin(len(rows), self.runtime.info.exits, self.runtime.info.decisions, lists)

    def run_stage(
        self, exit: int, batches: list[MicroBatch], deadlines: Array | None = None
    ) -> Iterator[Outputs]:
        """Runs all micro-batches up to an exit and replaces them in the list, which frees their old states.

        Rows past their deadline are dropped.
        """
        waiting, batches[:] = batches[::-1], []
        while waiting:
            batch = waiting.pop()
            if deadlines is not None:
                batch = self.keep(batch, np.flatnonzero(deadlines[batch.rows] >= time.monotonic()))
            if len(batch.rows):
                state, logits, gates = self.runtime.run(exit, batch.state)
                batches.append(MicroBatch(batch.rows, batch.lengths, state))
                yield logits, gates

    def pack(self, batches: list[MicroBatch], staying: Array) -> list[MicroBatch]:
        """Micro-batches of the rows that stay, small ones merged."""
        kept, first = [], 0
        for batch in batches:
            rows = np.flatnonzero(staying[first : first + len(batch.rows)])
            first += len(batch.rows)
            if len(rows):
                kept.append(self.keep(batch, rows))
        parts = self.partition((len(batch.rows), int(batch.lengths[-1])) for batch in kept)
        return [self.merge(kept[part]) for part in parts]

    def keep(self, batch: MicroBatch, rows: Array) -> MicroBatch:
        """Some rows of a micro-batch, given by increasing index."""
        if len(rows) == len(batch.rows):
            return batch
        state = self.runtime.keep(batch.state, rows) if len(rows) else None
        return MicroBatch(batch.rows[rows], batch.lengths[rows], state)

    def merge(self, batches: list[MicroBatch]) -> MicroBatch:
        if len(batches) == 1:
            return batches[0]
        return MicroBatch(
            np.concatenate([batch.rows for batch in batches]),
            np.concatenate([batch.lengths for batch in batches]),
            self.runtime.merge([batch.state for batch in batches]),
        )

    def partition(self, sizes: Iterable[tuple[int, int]]) -> Iterator[slice]:
        """Groups neighbors, given as (rows, longest) with increasing lengths, that run faster as one micro-batch.

        They do if they fit `batch_tokens` and the padding costs less than one more micro-batch.
        """
        first = rows = longest = count = 0
        for count, (more, longer) in enumerate(sizes, 1):
            padding = rows * (longer - longest)
            if rows and (padding > self.runtime.overhead or (rows + more) * longer > self.batch_tokens):
                yield slice(first, count - 1)
                first, rows = count - 1, 0
            rows, longest = rows + more, longer
        if count:
            yield slice(first, count)


def which_count(kinds: Array, sizes: Array) -> Array:
    """(tokens,) which tokens begin a word; all tokens of an example without words. `kinds` (tokens,) has the kind of
    each token of all examples in order, `sizes` (examples,) the number of tokens of each.

    >>> which_count(np.array([SPECIAL, CONTINUES, CONTINUES, BEGINS, SPECIAL, SPECIAL]), np.array([5, 1])).tolist()
    [False, True, False, True, False, True]
    """
    lists, before = Lists.consecutive(sizes), np.append(SPECIAL, kinds[:-1])
    before[lists.starts] = SPECIAL
    return np.asarray(count_tokens(kinds, before, lists))


def count_tokens(kinds: Array, before: Array, lists: Any) -> Array:
    """As `which_count`, given the kind of the token before each; also in a graph.

    The first token of a text begins a word, whatever its kind: some vocabularies mark words by the space before them.
    """
    counts = (kinds == BEGINS) | ((kinds == CONTINUES) & (before == SPECIAL))
    in_no_word = lists.spread(lists.total(counts, counted=False) == 0)
    counted: Array = counts | in_no_word
    return counted


def concatenate(outputs: list[Outputs]) -> Outputs:
    """The outputs of several micro-batches as one."""
    if len(outputs) == 1:
        return outputs[0]
    logits, gates = zip(*outputs, strict=True)
    return np.concatenate(logits), None if gates[0] is None else np.concatenate(gates)
