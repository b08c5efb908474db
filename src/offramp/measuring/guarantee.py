"""Learn then Test: the loosest threshold whose risk is proven to be low.

*Reference*: Angelopoulos et al. 2021, arXiv:2110.01052; for early exits Schuster et al. 2021, arXiv:2104.08803.

Thresholds are tested from the safest down, each at the full level delta, and testing stops at the first failure:
to certify a risky threshold, the first risky one in the sequence must pass by chance, which has probability at
most delta. The sequence must be fixed before the data are seen: `threshold_grid`.

With bounds by class a threshold passes if it passes for every class. A threshold that is risky for some class
must then pass for that class too, so each class is also tested at the full level delta.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offramp.errors import BadOption, NoSafeThreshold
from offramp.guarantees.bounds import Bound, binomial, examples_needed, hoeffding_bentkus
from offramp.measuring.exit_table import build_exit_table
from offramp.measuring.scores import apply_rule
from offramp.measuring.targets import NO_EARLY_EXIT, Candidate, Found, Guarantee
from offramp.policy import Certificate, Policy, fold
from offramp.policy.text import class_indices, round_threshold
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Array
from offramp.rules.base import Rule
from offramp.trace import Trace
from offramp.wording import count

GRID_SIZE = 400
LOG_ODDS = -6.0, 14.0
"""The range of a grid of probabilities."""
LARGEST_LEAD = 25.0
"""The lead of the top logit at the safest end of the grid: a probability of 1 - 1e-11."""


def certify(
    candidates: Sequence[Candidate], target: Guarantee, chosen_on: dict[str, Any], choices: int = 1
) -> list[Found]:
    """The policies that are proven safe, with certificates, the earliest-leaving first; or `NoSafeThreshold`.

    `chosen_on` has the name of the data that the rule was chosen on, as a field of a certificate.
    `choices` is the number of such calls among whose results one is chosen: all of them share delta.
    """
    tried = len(candidates) * choices
    outcomes = [prove(each, target, target.delta / tried) for each in candidates]
    proven = [outcome for outcome in outcomes if outcome.proven]
    if not proven:
        raise no_safe_threshold(target, outcomes)
    return [
        Found(
            replace(each.policy, certificate=issue(each, target, tried, chosen_on)),
            each.candidate.trace,
            each.mean_layer,
        )
        for each in sorted(proven, key=lambda outcome: outcome.mean_layer)
    ]


def check_target(trace: Trace, target: Guarantee) -> None:
    regression = trace.problem_type == REGRESSION
    if regression and target.tolerance is None:
        raise BadOption("regression needs tolerance=..., within which two numbers count as equal")
    if not regression and target.tolerance is not None:
        raise BadOption("a tolerance is for regression only; leave it out")
    if target.risk == "accuracy" and trace.labels is None:
        raise BadOption("accuracy needs labels and the trace has none; pass risk='disagreement'")


@dataclass(frozen=True)
class Part:
    """The examples that share one bound: all of them, or those of one class."""

    of_class: str | None
    rows: Array
    """(examples,) a mask."""
    epsilon: float

    @property
    def examples(self) -> int:
        return int(self.rows.sum())


@dataclass(frozen=True)
class TestResult:
    part: Part
    risk: float
    p_value: float


@dataclass(frozen=True)
class Outcome:
    proven: bool
    candidate: Candidate
    policy: Policy
    """The loosest that was proven; otherwise the safest that saves anything, which failed."""
    tests: tuple[TestResult, ...]
    """One per part, for this policy."""
    exits: tuple[float, ...]
    """The fraction of examples that leaves at each exit."""
    mean_layer: float
    delta: float

    @property
    def weakest(self) -> TestResult:
        return max(self.tests, key=lambda each: each.p_value)


def prove(candidate: Candidate, target: Guarantee, delta: float) -> Outcome:
    """Fixed-sequence testing of one rule along its grid of thresholds."""
    trace, policy = candidate.trace, candidate.policy
    output = apply_rule(trace, policy)
    table = build_exit_table(policy, output.readiness, trace.layers, threshold_grid(policy.rule, trace))
    losses, largest = losses_of(trace, target, output.predictions), largest_loss(trace, target)
    _, bound = bound_for(trace, target)
    parts = parts_of(trace, target)

    def mean_loss(part: Part) -> Array:
        return table.total(lambda exit: losses[exit] * part.rows) / (max(part.examples, 1) * largest)

    risks = [mean_loss(part) for part in parts]
    p_values = [bound(risk, part.examples, part.epsilon) for part, risk in zip(parts, risks, strict=True)]
    exits = table.histogram()
    mean_layers = exits @ np.asarray(trace.layers) / len(trace)

    safest_first = np.arange(len(mean_layers))[::-1]
    passes = np.max(p_values, axis=0) <= delta
    passed = int(np.logical_and.accumulate(passes[safest_first]).sum())
    useful = [index for index in safest_first if mean_layers[index] < trace.layers[-1]]
    proven = [index for index in safest_first[:passed] if mean_layers[index] < trace.layers[-1]]
    index = proven[-1] if proven else useful[0] if useful else safest_first[0]
    return Outcome(
        proven=bool(proven),
        candidate=candidate,
        policy=replace(policy, threshold=float(table.thresholds[index])),
        tests=tuple(
            TestResult(part, float(risk[index]), float(p_value[index]))
            for part, risk, p_value in zip(parts, risks, p_values, strict=True)
        ),
        exits=tuple((exits[index] / len(trace)).tolist()),
        mean_layer=float(mean_layers[index]),
        delta=delta,
    )


def threshold_grid(rule: Rule, trace: Trace) -> Array:
    """Thresholds in the rule's own units that depend on the shape of the model and not on its logits.

    Rules that count exits have few. For the others, logits of growing confidence (a lead of 0 to 25) span the
    readiness that the rule can take. Rounded, so that a policy is easy to read.
    """
    _, exits, classes = trace.logits.shape
    if rule.reads == "layer":
        return np.asarray(trace.layers)
    if rule.counts_exits:
        return np.arange(1, exits + 1)
    if rule.probability:
        probabilities = 1 / (1 + np.exp(-np.linspace(*LOG_ODDS, GRID_SIZE)))
        return np.unique([round_threshold(value) for value in probabilities.tolist()])
    logits = np.zeros((GRID_SIZE, 1, classes))
    lead = np.linspace(0, LARGEST_LEAD, GRID_SIZE)[:, None]
    if trace.problem_type == MULTI_LABEL:
        logits[:] = lead[..., None]  # the least confident label decides
    else:
        logits[..., 0] = lead
    readiness = fold(rule, logits, problem_type=trace.problem_type).readiness[:, 0]
    return np.unique([round_threshold(value) for value in (rule.sign * readiness).tolist()])


def losses_of(trace: Trace, target: Guarantee, predictions: Array) -> Array:
    """(exits, examples) the loss, 0 to `largest_loss`, of leaving at each exit, compared with the reference.

    Integers, because sums of fractions would be off by rounding.
    """
    full = trace.reference_predictions()

    def same(a: Array, b: Any) -> Array:
        if trace.problem_type != REGRESSION:
            return np.asarray(a == b)
        return np.asarray(np.abs(a - b) <= target.tolerance)

    if target.risk == "disagreement":
        differ = ~same(predictions, full)
        return np.asarray(differ.any(-1) if differ.ndim == 3 else differ, np.int64)
    lost = same(full, trace.labels) & ~same(predictions, trace.labels)
    return np.asarray(lost.sum(-1) if lost.ndim == 3 else lost, np.int64)


def largest_loss(trace: Trace, target: Guarantee) -> int:
    """The most that one example can lose: its prediction, or for multi-label accuracy each of its labels."""
    each_label = target.risk == "accuracy" and trace.problem_type == MULTI_LABEL
    return trace.logits.shape[-1] if each_label else 1


def bound_for(trace: Trace, target: Guarantee) -> tuple[str, Bound]:
    """The bound for this kind of loss, and its name."""
    if largest_loss(trace, target) == 1:
        return "exact binomial", binomial
    return "Hoeffding-Bentkus", hoeffding_bentkus


def parts_of(trace: Trace, target: Guarantee) -> list[Part]:
    """All examples, or one part per class: by the prediction of full depth, or for accuracy by label."""
    if not isinstance(target.epsilon, Mapping):
        return [Part(None, np.ones(len(trace), bool), target.epsilon)]
    if trace.problem_type != SINGLE_LABEL:
        raise BadOption("bounds by class need a single-label problem; give one bound for all")
    names = trace.label_names or tuple(map(str, range(trace.logits.shape[-1])))
    belongs = trace.reference_predictions() if target.risk == "disagreement" else trace.labels
    bounds = class_bounds(target.epsilon, names)
    return [Part(names[index], np.asarray(belongs == index), epsilon) for index, epsilon in bounds.items()]


def class_bounds(bounds: Mapping[str, float], names: Sequence[str]) -> dict[int, float]:
    """The bound of each class, by its index."""
    classes = class_indices(bounds, names)
    unbounded = [name for index, name in enumerate(names) if index not in classes]
    if unbounded:
        raise BadOption(f"no bound for {', '.join(unbounded)}; give one for every class")
    return dict(zip(classes, bounds.values(), strict=True))


def no_safe_threshold(target: Guarantee, outcomes: Sequence[Outcome]) -> NoSafeThreshold:
    """Why nothing was proven, and how many examples would have been enough."""
    leaving_early = [each for each in outcomes if each.mean_layer < each.candidate.trace.layers[-1]]
    if not leaving_early:
        return NoSafeThreshold(NO_EARLY_EXIT)
    nearest = min(leaving_early, key=lambda outcome: outcome.weakest.p_value)
    part, risk, delta = nearest.weakest.part, nearest.weakest.risk, nearest.delta
    _, bound = bound_for(nearest.candidate.trace, target)
    without_errors = examples_needed(part.epsilon, delta, bound=bound)
    needed = examples_needed(part.epsilon, delta, risk, bound)
    examples = count(part.examples, "example")
    if part.of_class is not None:
        examples += f" of the class {part.of_class!r}"
    if nearest.candidate.fitted_on:
        examples += f" (not counting {nearest.candidate.fitted_on} that the rule was fitted on)"
    wanted = f"{target.risk} of at most {part.epsilon:g} with confidence {1 - delta:.4g}"
    if without_errors is None or part.examples < without_errors:
        least = "more than a billion" if without_errors is None else str(without_errors)
        reason = f"{examples} cannot prove {wanted}: even with no errors it takes {least}"
        advice = "Calibrate on more examples, or allow more risk."
        return NoSafeThreshold(f"{reason}. {advice}", needed or without_errors, part.of_class)
    seen = f"the safest threshold that saves anything has an observed risk of {risk:.4f}"
    advice = (
        "More examples do not help; allow a larger risk, use another rule, or train the exits further."
        if needed is None
        else f"If that is the true risk, about {needed} are needed."
    )
    reason = f"no threshold can be proven to have {wanted} on {examples}: {seen}"
    return NoSafeThreshold(f"{reason}. {advice}", needed, part.of_class)


def issue(outcome: Outcome, target: Guarantee, rules_tried: int, chosen_on: dict[str, Any]) -> Certificate:
    trace = outcome.candidate.trace
    lost = sum(each.risk * each.part.examples for each in outcome.tests)
    by_class = {
        each.part.of_class: {"examples": each.part.examples, "observed_risk": each.risk}
        for each in outcome.tests
        if each.part.of_class is not None
    }
    return Certificate(
        promise=promise(target, outcome),
        policy=str(outcome.policy),
        risk=target.risk,
        epsilon=dict(target.epsilon) if isinstance(target.epsilon, Mapping) else target.epsilon,
        delta=target.delta,
        tolerance=target.tolerance,
        bound=bound_for(trace, target)[0],
        examples=len(trace),
        observed_risk=lost / len(trace),
        by_class=by_class or None,
        mean_layer=outcome.mean_layer,
        exits=outcome.exits,
        rules_tried=rules_tried,
        fitted_on=outcome.candidate.fitted_on,
        **trace.origin(),
        **chosen_on,
    )


def promise(target: Guarantee, outcome: Outcome) -> str:
    """The exact statement, with every condition."""
    reference = outcome.candidate.trace.reference_name or "full depth"
    loss, belongs = {
        "disagreement": (f"get a prediction that differs from {reference}", f"that {reference} predicts as"),
        "accuracy": (f"lose a right prediction of {reference}", "labelled"),
    }[target.risk]
    parts = [
        f"a fraction {part.epsilon:g} of "
        + ("examples" if part.of_class is None else f"examples {belongs} {part.of_class!r}")
        for part in (each.part for each in outcome.tests)
    ]
    within = "" if target.tolerance is None else f" (numbers within {target.tolerance:g} count as equal)"
    return (
        f"With probability at least {1 - target.delta:g} over the draw of the calibration examples, for examples "
        f"from the same distribution: at most {' and '.join(parts)} {loss}{within}."
    )
