"""A rule applied to a trace: its readiness at every exit, and the exit of every example at every threshold.

An example exits at the first exit whose readiness reaches the threshold, so the highest readiness so far decides at
which thresholds it has exited. Counting over all thresholds takes one pass over (examples, exits).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from offramp.guarantees.guarantee import Guarantee
from offramp.lists import Lists
from offramp.measuring.losses import losses_on
from offramp.policy import Policy, fold
from offramp.problems import Array
from offramp.rules.agreement import Agreement
from offramp.rules.base import Rule
from offramp.rules.rank import Rank
from offramp.trace import Trace

FITTED_ON = 20_000
"""The most examples that a rule is fitted on: it has few coefficients, and more would only take longer."""
SAMPLE = 50_000
"""Examples that automatic thresholds are chosen from."""


@dataclass(frozen=True)
class RuleOutput:
    """A rule applied to every exit of a trace."""

    readiness: Array
    """(examples, exits)"""
    predictions: Array
    """(exits, examples) classes or numbers, or (exits, examples, labels) 0 or 1; (exits, words) if tokens are tagged,
    see `Trace.decode`."""
    tags: Array | None = None
    """(exits, labelled tokens), if tags have labels."""


def apply_rule(trace: Trace, policy: Policy, seed: int = 0) -> RuleOutput:
    """The output of a rule; one that is not fitted is fitted here, see `cross_fit`."""
    if not policy.rule.is_fitted:
        return cross_fit(trace, policy, seed)
    folded = fold(policy.rule, trace.logits, trace.gates, trace.layers, trace.problem, trace.lists)
    predictions = np.moveaxis(trace.decode(folded.logits), 1, 0)
    tags = None if trace.tagged is None else np.ascontiguousarray(folded.logits[trace.tagged].argmax(-1).T)
    return RuleOutput(folded.readiness, np.ascontiguousarray(predictions), tags)


def cross_fit(trace: Trace, policy: Policy, seed: int) -> RuleOutput:
    """Each half of the examples with a rule fitted on the other half, so that no example scores its own fit."""
    halves = halves_of(trace, seed)
    order = np.concatenate(halves)
    outputs = [
        apply_rule(trace[rows], fit_rule(policy, trace[others])) for rows, others in (halves, halves[::-1])
    ]
    words = trace.words_of_examples
    predicted = order if words is None else words.rows(order)
    tags = None
    if trace.tagged is not None:
        labelled = Lists.consecutive(trace.parts_of_examples(trace.tagged)).rows(order)
        tags = np.concatenate([np.asarray(output.tags) for output in outputs], axis=1)[
            :, np.argsort(labelled)
        ]
    return RuleOutput(
        readiness=np.concatenate([output.readiness for output in outputs])[np.argsort(order)],
        predictions=np.concatenate([output.predictions for output in outputs], axis=1)[
            :, np.argsort(predicted)
        ],
        tags=tags,
    )


def halves_of(trace: Trace, seed: int) -> list[Array]:
    """Two random halves of the examples, each in order; a text stays together with all windows that it is read in."""
    texts = trace.text_numbers
    order = np.random.default_rng(seed).permutation(trace.whole_examples)
    return [np.flatnonzero(np.isin(texts, half)) for half in np.array_split(order, 2)]


def fit_rule(policy: Policy, trace: Trace, target: Guarantee | None = None) -> Policy:
    """The policy with its rule fitted to a trace; unchanged if the rule does not learn or is already fitted.

    The target's tolerance is for a rule that has none of its own. The rule of a tagger learns when an exit loses
    nothing of what the target bounds, any other when an exit predicts the same as the reference.
    """
    if policy.rule.is_fitted:
        return policy
    some = trace[:: max(1, -(-len(trace) // FITTED_ON))]
    if isinstance(policy.rule, Rank):
        return replace(policy, rule=Rank.fit(some, policy.rule.top_k))
    assert isinstance(policy.rule, Agreement)  # no other rule learns
    tolerance = policy.rule.tolerance or (None if target is None else target.tolerance)
    kept = None if target is None else nothing_lost(some, target)
    return replace(policy, rule=Agreement.fit(some, tolerance, kept))


def nothing_lost(trace: Trace, target: Guarantee) -> Array | None:
    """(exits, tagged texts) whether the tags of an exit lose nothing of any risk; None if a text has one prediction.

    A rule of single predictions reads how certain they are and not what they are, so it could not tell which of them
    lose a yes. If it could, and learned only from `missed`, it would exit early wherever the prediction is yes, since
    a false yes costs nothing under that bound: see `benchmarks/certificate.py missed`.
    """
    if not trace.problem.of_tokens:
        return None
    losses = losses_on(trace, trace.logits, target.risks)
    return np.asarray(np.all([values == 0 for values in losses.values()], axis=0))


def default_tolerance(trace: Trace) -> float:
    """In regression, a tenth of the standard deviation of the predictions, with two digits."""
    values = trace.logits[:, -1]
    finite = np.isfinite(values)
    return float(f"{np.std(values[finite]) / 10:.2g}") if finite.any() else 0.0


@dataclass(frozen=True)
class ExitTable:
    """Which exit each example takes at each threshold; thresholds are sorted, loosest first."""

    thresholds: Array
    """(thresholds,)"""
    reached: Array
    """(exits, examples) how many of the thresholds are reached at this exit or an earlier one."""

    def exits(self, index: int) -> Array:
        """(examples,) the exit that each example takes at thresholds[index]."""
        return np.asarray((self.reached <= index).sum(0))

    def histogram(self) -> Array:
        """(thresholds, exits) how many examples exit at each exit."""
        return np.stack([self._from_exit(exit) for exit in range(len(self.reached))], axis=1).astype(np.int64)

    def total(self, values: Callable[[int], Array]) -> Array:
        """(thresholds,) the sum of values(exit)[example] over all examples, each at the exit it takes."""
        return np.asarray(sum(self._from_exit(exit, values(exit)) for exit in range(len(self.reached))))

    def counts(self, cells: Callable[[int], Array], number: int) -> Array:
        """(thresholds, number) how many examples fall into each cell, cells(exit)[example] of 0 to number - 1."""
        width = len(self.thresholds) + 1
        changes = np.zeros(number * width, np.int64)
        for exit in range(len(self.reached)):
            start, stop = self._span(exit)
            cell = cells(exit) * width
            changes += np.bincount(cell + start, minlength=changes.size)
            changes -= np.bincount(cell + stop, minlength=changes.size)
        return np.cumsum(changes.reshape(number, width), axis=1)[:, :-1].T

    def _from_exit(self, exit: int, weights: Array | None = None) -> Array:
        width = len(self.thresholds) + 1
        start, stop = self._span(exit)
        change = np.bincount(start, weights, width) - np.bincount(stop, weights, width)
        return np.cumsum(change)[:-1]

    def _span(self, exit: int) -> tuple[Array, Array]:
        """(examples,) start and stop of the range of thresholds at which each example exits here."""
        stop = self.reached[exit]
        return (self.reached[exit - 1] if exit else np.zeros_like(stop)), stop


def build_exit_table(
    policy: Policy, readiness: Array, layers: Sequence[int], thresholds: ArrayLike
) -> ExitTable:
    """Apply thresholds, and the policy's first and last layer, to readiness (examples, exits)."""
    values = np.asarray(thresholds, np.float64)
    cuts = np.asarray(policy.rule.level(values), np.float64)
    if not policy.rule.counts_exits:
        cuts = np.nextafter(cuts, np.inf)  # so that `policy.reached` is a plain >=
    order = np.argsort(cuts, kind="stable")
    best = np.full(len(readiness), -np.inf)
    reached = np.empty((len(layers), len(readiness)), np.int32)
    for exit, layer in enumerate(layers):
        if layer >= (policy.min_layer or 0):
            np.maximum(best, readiness[:, exit], out=best)
        last = layer >= policy.last_layer(layers)
        reached[exit] = len(cuts) if last else np.searchsorted(cuts[order], best, side="right")
    return ExitTable(values[order], reached)


def useful_thresholds(policy: Policy, readiness: Array, layers: Sequence[int], number: int) -> Array:
    """At most `number` thresholds that give different exits, spread evenly over the readiness that occurs.

    Each lies between two neighbouring values of readiness, so that float noise decides nothing, and has few
    digits. At the loosest every example exits at the first exit allowed, at the strictest at the last.
    """
    rule = policy.rule
    allowed = [exit for exit, layer in enumerate(layers[:-1]) if layer >= (policy.min_layer or 0)]
    every = readiness[:, allowed]
    finite = np.isfinite(every)
    if not finite.any():
        return np.array([unreachable_threshold(rule)])
    most = np.max(every, where=finite, initial=-np.inf)
    least = np.min(every[:, 0], where=finite[:, 0], initial=most)
    step = 1 + len(readiness) // SAMPLE
    values = every[::step][finite[::step]]
    values = np.sort([*values[values >= least], least, most])  # a sample may miss the extremes
    distinct = np.unique(values)
    chosen = np.arange(len(distinct))
    if len(distinct) > number - 1:
        picks = np.linspace(0, len(values) - 1, number - 1).astype(int)
        chosen = np.searchsorted(distinct, np.unique(values[picks]))
    if rule.counts_exits:
        levels = [*distinct[chosen], distinct[-1] + 1]
    else:
        below = np.append(distinct[0] - max(abs(distinct[0]), 1.0) / 10, distinct[:-1])
        levels = [*map(short_number_between, below[chosen], distinct[chosen]), distinct[-1]]
    thresholds = rule.sign * np.array(levels)
    return np.asarray(thresholds[np.isfinite(rule.level(thresholds))])


def unreachable_threshold(rule: Rule) -> float:
    """A threshold that no example reaches: no entropy is below 0, no probability above 1, and 0 exits mean never."""
    return 1.0 if not rule.counts_exits and rule.sign > 0 else 0.0


def short_number_between(low: float, high: float) -> float:
    """The number with the fewest digits between two others; the lower one if no float lies between.

    *Example*
    >>> short_number_between(0.29871, 0.31102), short_number_between(-1.09861, -1.09859)
    (0.3, -1.0986)
    """
    for digits in range(17):
        number = float(f"{(low + high) / 2:.{digits}e}")
        if low < number < high:
            return number
    return low
