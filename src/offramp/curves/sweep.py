"""sweep(): fold each rule once over a trace, then read every threshold off it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offramp.cost import Shape, cost, macs
from offramp.criteria.oracle import Oracle
from offramp.curves.curve import Curve, Point, Sweep, template
from offramp.curves.exit_table import Leaving, leaving, useful_thresholds
from offramp.curves.scores import intervals, metrics_of, read_out, scores
from offramp.errors import BadOption, did_you_mean
from offramp.policy import Policy
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]
Thresholds: TypeAlias = str | Sequence[float] | Mapping[str, Sequence[float]]


def sweep(
    trace: Trace,
    rules: str | Sequence[str],
    thresholds: Thresholds = "auto",
    *,
    points: int = 100,
    bootstrap: int = 0,
    seed: int = 0,
    padded_to: int | None = None,
    layer_milliseconds: Sequence[float] | None = None,
) -> Sweep:
    """Score and cost of every rule at every threshold, from one trace.

    A rule is a name ("entropy", "patience", "layer", "never", "oracle") or the text of a policy, of which the
    options count and the threshold is replaced. `thresholds` are for all rules, by rule, or "auto": up to
    `points` that tell the examples apart. `bootstrap` resamples give each point an interval. That is free for
    accuracy and agreement; for other metrics of one label an example it sorts the examples once a point, and
    draws as many numbers a resample as pairs of label and answer occur; elsewhere each resample computes the
    metric anew. MACs count the real lengths unless all are `padded_to` one.

    *Example*
    >>> logits = np.array([[[2.0, 0.0], [3.0, 0.0]], [[0.5, 0.0], [0.0, 3.0]]], np.float32)
    >>> trace = Trace(logits, (1, 2), labels=np.array([0, 1]), lengths=np.array([5, 5]), ids=np.arange(2))
    >>> for point in sweep(trace, "entropy").curves["entropy"].points:
    ...     print(round(point.threshold, 2), point.scores["acc"], point.cost.mean_layer)
    0.7 0.5 1.0
    0.5 1.0 1.5
    0.37 1.0 2.0
    """
    if not len(trace):
        raise BadOption("the trace holds no examples, so there is nothing to measure")
    metrics = metrics_of(trace)

    def curve(rule: str, wanted: str | Sequence[float]) -> Curve:
        policy = of_trace(rule, trace)
        read = read_out(trace, policy)
        chosen = choose(wanted, policy, read.readiness, trace.layers, points)
        left = leaving(policy, read.readiness, trace.layers, chosen)
        found = scores(trace, left, read.answers)
        around = intervals(trace, left, read.answers, bootstrap, seed) if bootstrap else None
        histogram, spent = left.histogram(), mean_macs(trace, policy, left, padded_to)

        def point(index: int) -> Point:
            taken = histogram[index]
            return Point(
                threshold=None if not policy.criterion.takes_threshold else float(left.thresholds[index]),
                scores={name: float(found[name][index]) for name in metrics},
                cost=cost(
                    taken,
                    trace.layers,
                    trace.layers[-1],
                    None if spent is None else spent[index],
                    layer_milliseconds,
                ),
                exits=tuple(taken.tolist()),
                interval=None if around is None else around[index],
            )

        return Curve(rule, metrics[0], tuple(map(point, range(len(left.thresholds)))))

    wanted = asked(thresholds, [rules] if isinstance(rules, str) else rules)
    return Sweep(
        curves={rule: curve(rule, values) for rule, values in wanted.items()},
        per_exit=curve("layer", "auto").points,
        layers=tuple(trace.layers),
        metrics=metrics,
        examples=len(trace),
        not_finite=int((~np.isfinite(trace.logits).all((1, 2))).sum()),
        data=trace.data,
        fingerprint=trace.fingerprint,
    )


def asked(thresholds: Thresholds, rules: Sequence[str]) -> dict[str, str | Sequence[float]]:
    """The thresholds of each rule."""
    by_rule = thresholds if isinstance(thresholds, Mapping) else dict.fromkeys(rules, thresholds)
    for rule in by_rule.keys() - set(rules):
        raise BadOption(f"there are thresholds for a rule that is not swept, {did_you_mean(rule, rules)}")
    for wanted in by_rule.values():
        if isinstance(wanted, str) and wanted != "auto":
            raise BadOption(f'thresholds are "auto", numbers, or numbers by rule; not {wanted!r}')
    return {rule: by_rule.get(rule, "auto") for rule in rules}


def of_trace(rule: str, trace: Trace) -> Policy:
    """The policy whose threshold is to be swept."""
    if rule != "oracle":
        return template(rule)
    if trace.labels is None:
        raise BadOption("the oracle needs labels and the trace has none; leave it out")
    return Policy(Oracle(trace.labels))


def choose(
    wanted: str | Sequence[float], policy: Policy, readiness: Array, layers: Sequence[int], points: int
) -> Array:
    """The thresholds to sweep, each one checked to be possible for these exits."""
    if not policy.criterion.takes_threshold:
        return np.zeros(1)
    if not isinstance(wanted, str):
        chosen = np.asarray(wanted, np.float64)
    elif policy.criterion.reads == "layer":
        chosen = np.asarray(layers)
    else:
        chosen = useful_thresholds(policy, readiness, layers, points)
    for threshold in chosen.tolist():
        replace(policy, threshold=threshold).begin(0, layers)
    return chosen


def mean_macs(trace: Trace, policy: Policy, left: Leaving, padded_to: int | None) -> list[float] | None:
    """The mean MACs of an example at each threshold; None where the shape of the model is unknown."""
    if not trace.shape:
        return None
    totals = left.total(lambda exit: macs_until(trace, policy, exit, padded_to))
    return [float(total) / len(trace) for total in totals]


def macs_until(trace: Trace, policy: Policy, exit: int, padded_to: int | None = None) -> Array:
    """(examples,) MACs of an answer at this exit, with the head of every exit on the way that the policy asks."""
    static = policy.criterion.reads in ("nothing", "layer")  # whoever leaves has passed silent exits only
    heads = 1 if static else exit + 1 - policy.skippable_exits(trace.layers)
    sizes = trace.shape
    pooler = bool(sizes.get("pooler", True))
    shape = Shape(sizes["hidden"], sizes["intermediate"], sizes["heads"], sizes["layers"], pooler)
    lengths = trace.lengths if padded_to is None else np.full(len(trace), padded_to)
    return macs(shape, trace.logits.shape[-1], lengths, trace.layers[exit], heads)
