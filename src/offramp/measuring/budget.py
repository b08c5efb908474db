"""A budget for a set of examples, spent as in MSDNet: a fraction of the examples leaves at every exit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp.errors import BadOption, NoSafeThreshold
from offramp.measuring.exit_table import ExitTable, short_number_between, unreachable_threshold
from offramp.measuring.scores import apply_rule, metric_names, scores
from offramp.measuring.sweep import macs_to_exit
from offramp.measuring.targets import Budget, Found
from offramp.numerics import softmax
from offramp.policy import Policy, reached
from offramp.problems import Array
from offramp.rules.base import Rule
from offramp.trace import Trace

STEEPEST = 20.0
"""The logarithm of the ratio of neighbouring fractions at which all examples leave at one end."""


def spend(trace: Trace, policies: Sequence[Policy], target: Budget) -> list[Found]:
    """For each rule its policy within the budget on this trace, the best score first; or `NoSafeThreshold`."""
    found, least = [], np.inf
    for policy in policies:
        prices = prices_of(trace, policy, target.cost)
        output = apply_rule(trace, policy)
        if policy.rule.reads == "layer":
            splits = [static(trace, exit) for exit in range(len(trace.layers))]
        else:
            splits = [bisect(trace, policy, output.readiness, prices, target.mean)]
        costs = [mean_price(prices, each) for each in splits]
        least = min(least, *costs)
        within = [each for each, cost in zip(splits, costs, strict=True) if cost <= target.mean]
        if within:
            best = max(within, key=lambda each: score_of(trace, output.predictions, each))
            found.append(
                Found(
                    replace(policy, threshold=best.thresholds),
                    trace,
                    mean_layer=float(np.asarray(trace.layers)[best.exits].mean()),
                    score=score_of(trace, output.predictions, best),
                )
            )
    if not found:
        raise NoSafeThreshold(
            f"a mean of {target.mean:g} {target.cost} is out of reach: even leaving as early as possible takes "
            f"{least:.4g}. Allow that much, or add earlier exits to the model."
        )
    return sorted(found, key=lambda each: -(each.score or 0.0))


def bisect(trace: Trace, policy: Policy, readiness: Array, prices: Array, mean: float) -> "Split":
    """The fractions form a geometric series; bisect its ratio until the mean cost meets the budget."""
    early, late = -STEEPEST, STEEPEST
    for _ in range(40):
        middle = (early + late) / 2
        affordable = mean_price(prices, split(policy, readiness, trace.layers, middle)) <= mean
        early, late = (middle, late) if affordable else (early, middle)
    return split(policy, readiness, trace.layers, early)


def static(trace: Trace, exit: int) -> "Split":
    """Every example leaves at one exit."""
    return Split((float(trace.layers[exit]),), np.full(len(trace), exit))


def mean_price(prices: Array, split: "Split") -> float:
    return float(prices[split.exits, np.arange(prices.shape[1])].mean())


def score_of(trace: Trace, predictions: Array, split: "Split") -> float:
    """The headline score."""
    table = ExitTable(np.zeros(1), (split.exits <= np.arange(len(trace.layers))[:, None]).astype(np.int32))
    return float(scores(trace, table, predictions)[metric_names(trace)[0]][0])


def prices_of(trace: Trace, policy: Policy, unit: str) -> Array:
    """(exits, examples) the cost of leaving at each exit."""
    if unit == "layers":
        return np.repeat(np.asarray(trace.layers, np.float64)[:, None], len(trace), axis=1)
    if not trace.shape:
        raise BadOption("MACs are unknown: the trace has no model shape. Count layers, or collect it again.")
    return np.stack([macs_to_exit(trace, policy, exit) for exit in range(len(trace.layers))])


@dataclass(frozen=True)
class Split:
    """A threshold per exit, or for all exits, and the exit that each example takes."""

    thresholds: tuple[float, ...]
    exits: Array


def split(policy: Policy, readiness: Array, layers: Sequence[int], slope: float) -> Split:
    """At each exit let its fraction of the readiest examples leave; a negative slope favours early exits."""
    until = np.cumsum(softmax(slope * np.arange(len(layers))))
    exits = np.full(len(readiness), len(layers) - 1)
    waiting = np.arange(len(readiness))
    thresholds = []
    for exit, layer in enumerate(layers):
        column = readiness[waiting, exit]
        wanted = round(until[exit] * len(readiness)) - (len(readiness) - len(waiting))
        if layer < (policy.min_layer or 0):
            wanted = 0
        threshold = threshold_for(policy.rule, column, wanted, len(layers))
        leaves = reached(policy.rule, column, threshold)
        if layer >= policy.last_layer(layers):
            leaves = np.ones(len(waiting), bool)
        thresholds.append(threshold)
        exits[waiting[leaves]] = exit
        waiting = waiting[~leaves]
    return Split(tuple(thresholds), exits)


def threshold_for(rule: Rule, readiness: Array, wanted: int, exits: int) -> float:
    """A threshold that the `wanted` readiest examples reach, and of the rest only ties with the last of them."""
    finite = readiness if rule.counts_exits else readiness[np.isfinite(readiness)]
    wanted = min(wanted, len(finite))
    if wanted <= 0:
        return unreachable_threshold(rule)
    last = float(np.partition(finite, len(finite) - wanted)[len(finite) - wanted])
    if rule.counts_exits:
        return float(np.clip(last, 1, exits + 1))
    below = finite[finite < last]
    return rule.sign * short_number_between(float(below.max()) if below.size else last - 0.1, last)
