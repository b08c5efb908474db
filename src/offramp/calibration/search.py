"""calibrate(): the policy of a rule that reaches a target on a trace."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from offramp.calibration.budget import spend
from offramp.calibration.guarantee import Candidate, certify
from offramp.calibration.targets import Budget, Guarantee, MaxLoss, MinSpeedup, Target
from offramp.calibration.temperatures import Temperatures
from offramp.criteria import CRITERIA
from offramp.criteria.agreement import Agreement
from offramp.curves import Curve, Point, Sweep, sweep
from offramp.curves.curve import parse_rule
from offramp.errors import BadOption, NoSafeThreshold, ReusedData
from offramp.policy import Policy
from offramp.problems import REGRESSION
from offramp.trace import Trace

DEFAULT_RULES = ("agreement", "entropy", "confidence", "margin", "layer")
FIT_SHARE, FIT_MOST = 3, 2000
"""A rule that learns is fitted on a third of the examples, at most this many: it has few coefficients."""
POINTS = 400
"""Thresholds tried where no statistical test limits them."""


def calibrate(
    trace: Trace,
    rule: str | Sequence[str] | None,
    target: Target,
    *,
    seed: int = 0,
    temperatures: Temperatures | Sequence[float] | None = None,
    chosen_on: Trace | str | None = None,
) -> Policy:
    """A policy that reaches the target on this trace, or `NoSafeThreshold`, never something weaker.

    `rule` is a name or the text form of a policy, whose threshold is replaced; None tries agreement, entropy,
    confidence, margin and layer, as far as they suit the problem. Of several rules the best for the target is
    returned; a guarantee pays for that choice by splitting delta among them, other targets warn. A rule that learns
    is fitted on a third of the examples, drawn with `seed`, and its threshold is calibrated on the others.
    `temperatures` (see `fit_temperatures`) divide the logits of each exit. `chosen_on` is the trace, or the name
    of the data, that the rule and its options were chosen on. A warning says if the rule or the temperatures were
    chosen on examples of this trace.

    *Example*
    >>> import numpy as np
    >>> logits = np.zeros((400, 2, 2), np.float32)
    >>> logits[:, 0, 0], logits[:, 1, 0] = np.linspace(-0.2, 4, 400), 4
    >>> trace = Trace(logits, (1, 2), labels=None, lengths=np.ones(400), ids=np.arange(400))
    >>> policy = calibrate(trace, "entropy", Guarantee(epsilon=0.02, delta=0.05))
    >>> policy.certificate.examples, policy.certificate.observed_risk
    (400, 0.005)
    """
    rules = [rule] if isinstance(rule, str) else list(default_rules(trace, target) if rule is None else rule)
    if not rules:
        raise BadOption("name at least one rule to calibrate")
    if not len(trace):
        raise BadOption("the trace is empty; there is nothing to calibrate on")
    policies = [parse_rule(text) for text in rules]
    fitted_on = None
    if isinstance(temperatures, Temperatures):
        fitted_on = temperatures.fitted_on
        temperatures = temperatures.values
    if temperatures is not None:
        policies = [replace(policy, temperatures=tuple(temperatures)) for policy in policies]
    if any(not policy.criterion.takes_threshold for policy in policies):
        raise BadOption(f"{', '.join(rules)}: has no threshold to calibrate")
    for what, source in (("rule was chosen", chosen_on), ("temperatures were fitted", fitted_on)):
        if source is not None and reuses(trace, source):
            warn(f"the {what} on {name_of(source)!r} and the threshold is calibrated on it")

    tolerance = target.tolerance if isinstance(target, Guarantee) else None
    candidates = [fit(trace, policy, tolerance, seed) for policy in policies]
    if isinstance(target, Guarantee):
        origin = {"rule_chosen_on": name_of(chosen_on), "temperatures_fitted_on": name_of(fitted_on)}
        return certify(candidates, target, origin)
    if len(policies) > 1:
        warn(f"one of {len(policies)} rules is chosen by the data that sets its threshold")
    trace = min((each.trace for each in candidates), key=len)  # the same examples for all rules
    fitted = {str(each.policy): each.policy for each in candidates}
    if isinstance(target, Budget):
        return spend(trace, [*fitted.values()], target)
    found = sweep(trace, [*fitted.values()], points=POINTS)
    best, point = within_loss(found, target) if isinstance(target, MaxLoss) else fast_enough(found, target)
    return replace(fitted[best.rule], threshold=best.policy(point).threshold)


def default_rules(trace: Trace, target: Target) -> list[str]:
    """Those that work for this problem; a budget needs a threshold per exit, which `layer` does not have."""
    able = [rule for rule in DEFAULT_RULES if trace.problem_type != REGRESSION or CRITERIA[rule].regression]
    return [rule for rule in able if rule != "layer" or not isinstance(target, Budget)]


def fit(trace: Trace, policy: Policy, tolerance: float | None, seed: int) -> Candidate:
    """A rule that learns is fitted on some examples and calibrated on the others, any other on all of them."""
    if policy.criterion.is_fitted:
        return Candidate(policy, trace)
    order = np.random.default_rng(seed).permutation(len(trace))
    count = min(len(trace) // FIT_SHARE, FIT_MOST)
    if count < 2:
        raise BadOption(f"{len(trace)} examples are too few to fit agreement and calibrate its threshold")
    assert isinstance(policy.criterion, Agreement)  # the only rule that learns
    examples = trace[np.sort(order[:count])]
    examples = replace(examples, logits=policy.tempered(examples.logits))
    rule = Agreement.fit(examples, tolerance or policy.criterion.tolerance)
    return Candidate(replace(policy, criterion=rule), trace[np.sort(order[count:])], count)


def reuses(trace: Trace, source: Trace | str) -> bool:
    """Whether a trace contains examples of that source."""
    if isinstance(source, str):
        return source == trace.data
    if source.data != trace.data or not np.isin(trace.ids, source.ids).any():
        return False
    # ids are often just row numbers, so for unnamed data they prove little
    return bool(trace.data) or source.fingerprint == trace.fingerprint


def name_of(source: Trace | str | None) -> str | None:
    return source.data if isinstance(source, Trace) else source


def warn(what: str) -> None:
    warnings.warn(
        f"{what}: expect a worse score on new data, or hold examples out.", ReusedData, stacklevel=3
    )


def within_loss(found: Sweep, target: MaxLoss) -> tuple[Curve, Point]:
    """The point with the fewest layers within the allowed loss."""
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
            f"the smallest loss is {least:.2f}. Allow that, or train the exits further."
        )
    return min(allowed, key=lambda item: (item[1].cost.mean_layer, lost(item[1])))


def fast_enough(found: Sweep, target: MinSpeedup) -> tuple[Curve, Point]:
    """The point with the best score within the allowed cost."""

    def ratio(point: Point) -> float:
        return expense(found.full, target.of) / expense(point, target.of)

    points = [(curve, point) for curve in found.curves.values() for point in curve.points]
    allowed = [(curve, point) for curve, point in points if ratio(point) >= target.ratio - 1e-9]
    if not allowed:
        most = max(ratio(point) for _, point in points)
        raise NoSafeThreshold(
            f"no threshold reduces {target.of} {target.ratio:g} times; the most is {most:.2f} times."
        )
    return max(allowed, key=lambda item: (found.score(item[1]), ratio(item[1])))


def expense(point: Point, of: str) -> float:
    if of == "layers":
        return point.cost.mean_layer
    if point.cost.macs is None:
        raise BadOption("MACs are unknown: the trace has no model shape. Count layers, or collect it again.")
    return point.cost.macs
