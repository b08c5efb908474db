"""calibrate(): the policy of a rule that reaches a target on a trace."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from offramp.calibration.budget import spend
from offramp.calibration.guarantee import certify
from offramp.calibration.targets import Budget, Guarantee, MaxLoss, MinSpeedup, Target
from offramp.calibration.temperatures import Temperatures
from offramp.curves import Point, Sweep, sweep
from offramp.curves.curve import parse_rule
from offramp.errors import BadOption, NoSafeThreshold, ReusedData
from offramp.policy import Policy
from offramp.trace import Trace

POINTS = 400
"""Thresholds that are looked at where no statistics limits them."""


def calibrate(
    trace: Trace,
    rule: str | Sequence[str],
    target: Target,
    *,
    temperatures: Temperatures | Sequence[float] | None = None,
    chosen_on: Trace | str | None = None,
) -> Policy:
    """A policy that reaches the target on this trace, or `NoSafeThreshold`, never something weaker.

    `rule` is a name or the text of a policy, whose threshold is replaced. Of several the one that serves the
    target best is taken; a guarantee pays for that by sharing out delta among them, other targets warn.
    `temperatures` (see `fit_temperatures`) divide the logits of each exit. `chosen_on` is the trace, or the name
    of the data, that the rule and its options were chosen on. If rule or temperatures come from examples of this
    trace, that is a reason to warn.

    *Example*
    >>> import numpy as np
    >>> logits = np.zeros((400, 2, 2), np.float32)
    >>> logits[:, 0, 0], logits[:, 1, 0] = np.linspace(-0.2, 4, 400), 4
    >>> trace = Trace(logits, (1, 2), labels=None, lengths=np.ones(400), ids=np.arange(400))
    >>> policy = calibrate(trace, "entropy", Guarantee(epsilon=0.02, delta=0.05))
    >>> policy.certificate["examples"], policy.certificate["observed_risk"]
    (400, 0.005)
    """
    rules = [rule] if isinstance(rule, str) else list(rule)
    if not rules:
        raise BadOption("name at least one rule to calibrate")
    if not len(trace):
        raise BadOption("the trace holds no examples to calibrate on")
    policies = [parse_rule(text) for text in rules]
    fitted_on = None
    if isinstance(temperatures, Temperatures):
        fitted_on = temperatures.fitted_on
        temperatures = temperatures.values
    if temperatures is not None:
        policies = [replace(policy, temperatures=tuple(temperatures)) for policy in policies]
    if any(policy.criterion.bare for policy in policies):
        raise BadOption(f"{', '.join(rules)}: a rule without a threshold has none to calibrate")
    for what, source in (("rule was chosen", chosen_on), ("temperatures were fitted", fitted_on)):
        if source is not None and reuses(trace, source):
            warn(f"the {what} on {name_of(source)!r} and the threshold is calibrated on it")

    if isinstance(target, Guarantee):
        origin = {"rule_chosen_on": name_of(chosen_on), "temperatures_fitted_on": name_of(fitted_on)}
        return certify(trace, policies, target, origin)
    if len(policies) > 1:
        warn(f"one of {len(policies)} rules is chosen by the data that sets its threshold")
    if isinstance(target, Budget):
        return spend(trace, policies, target)
    found = sweep(trace, [str(policy) for policy in policies], points=POINTS)
    return within_loss(found, target) if isinstance(target, MaxLoss) else fast_enough(found, target)


def reuses(trace: Trace, source: Trace | str) -> bool:
    """Whether a trace has examples of that source."""
    if isinstance(source, str):
        return source == trace.data
    if source.data != trace.data or not np.isin(trace.ids, source.ids).any():
        return False
    # ids are often just row numbers, so those of data without a name say little alone
    return bool(trace.data) or source.fingerprint == trace.fingerprint


def name_of(source: Trace | str | None) -> str | None:
    return source.data if isinstance(source, Trace) else source


def warn(what: str) -> None:
    warnings.warn(
        f"{what}: expect a worse score on new data, or hold examples back.", ReusedData, stacklevel=3
    )


def within_loss(found: Sweep, target: MaxLoss) -> Policy:
    """The policy of fewest layers that loses little enough."""
    metric = target.metric or found.headline
    if metric not in found.metrics:
        raise BadOption(f"the trace is not scored by {metric!r}; it has {', '.join(found.metrics)}")

    def lost(point: Point) -> float:
        return 100 * (found.full.scores[metric] - point.scores[metric])

    points = [(curve, point) for curve in found.curves.values() for point in curve.points]
    saving = [(curve, point) for curve, point in points if point.cost.mean_layer < point.cost.depth]
    allowed = [(curve, point) for curve, point in saving if lost(point) <= target.points + 1e-9]
    if not allowed:
        least = min((lost(point) for _, point in saving), default=float("inf"))
        raise NoSafeThreshold(
            f"no threshold saves a layer and loses at most {target.points:g} points of {metric}: "
            f"the least that is lost is {least:.2f}. Allow that, or train the exits further."
        )
    curve, point = min(allowed, key=lambda item: (item[1].cost.mean_layer, lost(item[1])))
    return curve.policy(point)


def fast_enough(found: Sweep, target: MinSpeedup) -> Policy:
    """The policy of the best score that costs little enough."""

    def ratio(point: Point) -> float:
        return expense(found.full, target.of) / expense(point, target.of)

    points = [(curve, point) for curve in found.curves.values() for point in curve.points]
    allowed = [(curve, point) for curve, point in points if ratio(point) >= target.ratio - 1e-9]
    if not allowed:
        most = max(ratio(point) for _, point in points)
        raise NoSafeThreshold(
            f"no threshold makes {target.of} {target.ratio:g} times fewer: the most is {most:.2f} times."
        )
    curve, point = max(allowed, key=lambda item: (found.score(item[1]), ratio(item[1])))
    return curve.policy(point)


def expense(point: Point, of: str) -> float:
    if of == "layers":
        return point.cost.mean_layer
    if point.cost.macs is None:
        raise BadOption("MACs are unknown: the trace carries no shape. Count layers, or collect it again.")
    return point.cost.macs
