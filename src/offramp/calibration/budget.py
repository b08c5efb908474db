"""A budget for a set of examples, spent as in MSDNet: a fraction of the examples leaves at every exit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from offramp.calibration.targets import Budget
from offramp.criteria.base import Criterion, softmax
from offramp.curves.exit_table import ExitTable, short_number_between, unreachable_threshold
from offramp.curves.scores import apply_rule, metric_names, scores
from offramp.curves.sweep import macs_to_exit
from offramp.errors import BadOption, NoSafeThreshold
from offramp.policy import Policy, reached
from offramp.problems import Array
from offramp.trace import Trace

STEEPEST = 20.0
"""The logarithm of the ratio of neighbouring fractions at which all examples leave at one end."""


def spend(trace: Trace, policies: Sequence[Policy], target: Budget) -> Policy:
    """The policy with the best score within the budget on this trace."""
    candidates = [fit_budget(trace, policy, target) for policy in policies]
    return max(candidates, key=lambda each: each[1])[0]


def fit_budget(trace: Trace, policy: Policy, target: Budget) -> tuple[Policy, float]:
    """A policy within the budget, and its score.

    The fractions form a geometric series; bisect its ratio until the mean cost meets the budget.
    """
    read = apply_rule(trace, policy)
    prices = prices_of(trace, policy, target.of)
    every_row = np.arange(len(trace))

    def mean(slope: float) -> float:
        _, exits = split(policy, read.readiness, trace.layers, slope)
        return float(prices[exits, every_row].mean())

    early, late = -STEEPEST, STEEPEST
    if mean(early) > target.mean:
        raise NoSafeThreshold(
            f"a mean of {target.mean:g} {target.of} is out of reach: leaving as early as the rule can takes "
            f"{mean(early):g}. Allow that much, or add earlier exits to the model."
        )
    for _ in range(40):
        middle = (early + late) / 2
        early, late = (middle, late) if mean(middle) <= target.mean else (early, middle)
    thresholds, exits = split(policy, read.readiness, trace.layers, early)
    left = ExitTable(np.zeros(1), (exits <= np.arange(len(trace.layers))[:, None]).astype(np.int32))
    reach = scores(trace, left, read.predictions)[metric_names(trace)[0]]
    return replace(policy, threshold=thresholds), float(reach[0])


def prices_of(trace: Trace, policy: Policy, of: str) -> Array:
    """(exits, examples) the cost of leaving at each exit."""
    if of == "layers":
        return np.repeat(np.asarray(trace.layers, np.float64)[:, None], len(trace), axis=1)
    if not trace.shape:
        raise BadOption("MACs are unknown: the trace has no model shape. Count layers, or collect it again.")
    return np.stack([macs_to_exit(trace, policy, exit) for exit in range(len(trace.layers))])


def split(
    policy: Policy, readiness: Array, layers: Sequence[int], slope: float
) -> tuple[tuple[float, ...], Array]:
    """A threshold per exit, which lets its fraction of the readiest examples leave, and the exits they take.

    A negative slope favours early exits.
    """
    until = np.cumsum(softmax(slope * np.arange(len(layers))))
    exits = np.full(len(readiness), len(layers) - 1)
    waiting = np.arange(len(readiness))
    thresholds = []
    for exit, layer in enumerate(layers):
        column = readiness[waiting, exit]
        wanted = round(until[exit] * len(readiness)) - (len(readiness) - len(waiting))
        if layer < (policy.min_layer or 0):
            wanted = 0
        threshold = threshold_for(policy.criterion, column, wanted, len(layers))
        leaves = reached(policy.criterion, column, threshold)
        if layer >= (policy.max_layer or layers[-1]):
            leaves = np.ones(len(waiting), bool)
        thresholds.append(threshold)
        exits[waiting[leaves]] = exit
        waiting = waiting[~leaves]
    return tuple(thresholds), exits


def threshold_for(criterion: Criterion, readiness: Array, wanted: int, exits: int) -> float:
    """A threshold that the `wanted` readiest examples reach, and of the rest only ties with the last of them."""
    finite = readiness if criterion.counts_exits else readiness[np.isfinite(readiness)]
    wanted = min(wanted, len(finite))
    if wanted <= 0:
        return unreachable_threshold(criterion)
    last = float(np.partition(finite, len(finite) - wanted)[len(finite) - wanted])
    if criterion.counts_exits:
        return float(np.clip(last, 1, exits + 1))
    below = finite[finite < last]
    return criterion.sign * short_number_between(float(below.max()) if below.size else last - 0.1, last)
