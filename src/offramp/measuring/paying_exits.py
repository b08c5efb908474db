"""Which exits of a model pay: each costs a head and a decision on the way, and saves layers for those who take it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp.guarantees.guarantee import Guarantee
from offramp.measuring.exit_table import build_exit_table, fit_rule, halves_of, nothing_lost
from offramp.policy import Policy, fold
from offramp.rules.agreement import Agreement
from offramp.trace import Trace

THRESHOLDS = 200
"""How many thresholds are tried for each set of exits."""
AS_FAST = 1.02
"""Times that differ by less than this factor count as equal: the expected time is noisy."""


@dataclass(frozen=True)
class ExitCost:
    """Milliseconds of one way to run the model, such as one text at a time."""

    layer: float
    exit: float
    """An exit on the way: its head and the decision."""


def paying_exits(trace: Trace, target: Guarantee, costs: Sequence[ExitCost]) -> tuple[int, ...]:
    """The exits that are worth keeping under a guarantee: the last, and at least one more, without which there would
    be nothing to calibrate.

    Exits are removed one by one, each time the one without which the expected time is shortest. Of all sets on the
    way, the smallest that is about as fast as the fastest is kept. Times under several `costs` are multiplied. The
    policy is `agreement`, fitted on half of the examples and tried on the other.
    """
    halves = halves_of(trace, 0)
    pairs = [(trace[fitted], trace[tried]) for fitted, tried in (halves, halves[::-1])]

    def expected(kept: Sequence[int]) -> float:
        return sum(expected_time(*pair, kept, target, costs) for pair in pairs)

    kept = tuple(range(len(trace.layers)))
    path = [(expected(kept), kept)]
    while len(kept) > 2:
        path.append(min((expected(fewer), fewer) for fewer in one_less(kept)))
        kept = path[-1][1]
    least, _ = min(path)
    return next(kept for time, kept in reversed(path) if time <= AS_FAST * least)


def one_less(kept: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    return (kept[:place] + kept[place + 1 :] for place in range(len(kept) - 1))


def expected_time(
    fitted: Trace, tried: Trace, kept: Sequence[int], target: Guarantee, costs: Sequence[ExitCost]
) -> float:
    """The shortest time over all thresholds that keep the share of changed predictions (or of tagged texts that lose
    something) within the tightest bound."""
    fitted, tried = at_exits(fitted, kept), at_exits(tried, kept)
    policy = fit_rule(Policy(Agreement()), fitted, target)
    readiness = fold(policy.rule, tried.logits, None, tried.layers, tried.problem, tried.lists).readiness
    thresholds = [-np.inf, *np.quantile(readiness, np.linspace(0, 1, THRESHOLDS)), np.inf]
    table = build_exit_table(policy, readiness, tried.layers, thresholds)
    shares = table.histogram() / len(tried)  # (thresholds, exits)
    same = nothing_lost(tried, target)
    if same is None:
        same = np.stack([tried.agrees(tried.logits[:, exit], target.tolerance) for exit in range(len(kept))])
    changed = table.total(lambda exit: ~same[exit]) / len(tried)
    most = min(min(target.bounds_by_group(risk).values()) for risk in target.risks)
    mean_layer, mean_exit = shares @ np.array(tried.layers), shares @ np.arange(len(kept))
    times = np.prod([cost.layer * mean_layer + cost.exit * mean_exit for cost in costs], axis=0)
    return float(times[(changed <= most) | np.isposinf(table.thresholds)].min())


def at_exits(trace: Trace, kept: Sequence[int]) -> Trace:
    """The trace of the model with some of its exits."""
    if trace.reference is None:
        trace = replace(trace, reference=trace.logits[:, -1])
    gates = None if trace.gates is None else trace.gates[:, kept]
    return replace(
        trace, logits=trace.logits[:, kept], gates=gates, layers=tuple(trace.layers[exit] for exit in kept)
    )
