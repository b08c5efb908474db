"""Learn then Test: the loosest threshold whose risk is proven to be low.

*Reference*: Angelopoulos et al. 2021, arXiv:2110.01052; for early exits Schuster et al. 2021, arXiv:2104.08803.

Thresholds are tested from the safest down (see `offramp.guarantees.testing`), in a sequence that is fixed before the
data are seen: `threshold_grid`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp.errors import BadOption, NoSafeThreshold
from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.certificate import Certificate, Conditions, Guarantee
from offramp.guarantees.losses import LOSSES, OF_TAGS
from offramp.guarantees.testing import Part, PartResult, first_failure, results_of
from offramp.lists import Lists
from offramp.measuring.exit_table import apply_rule, build_exit_table, reference_of
from offramp.measuring.rankings import Rankings
from offramp.measuring.targets import NO_EARLY_EXIT, Candidate
from offramp.policy import Decision, Policy, fold
from offramp.policy.text import class_indices, round_threshold
from offramp.problems import SINGLE_LABEL, Array, Problem
from offramp.rules.base import Rule
from offramp.rules.rank import Rank
from offramp.trace import Trace
from offramp.wording import count

RISKS = ("changed", "accuracy", "accuracy_drop")
"""The losses of single texts that a policy can be calibrated for; see `LOSSES`. Those of taggers are in `OF_TAGS`."""
GRID_SIZE = 400
LOG_ODDS = -6.0, 14.0
"""The range of a grid of probabilities."""
RANK_GRID_SIZE = 60
UNLIKELY = 0.0005, 0.25
"""The range of a grid of probabilities below which a document is dropped."""
LARGEST_LEAD = 25.0
"""The lead of the top logit at the safest end of the grid: a probability of 1 - 1e-11."""


def certify(
    candidates: Sequence[Candidate],
    target: Guarantee,
    chosen_on: str | None,
    choices: int = 1,
    spent: float = 0.0,
) -> list[Candidate]:
    """The policies that are proven safe, with certificates, those that exit earliest first; or `NoSafeThreshold`.

    If a fixed layer is one of the candidates and full depth is proven too, which may differ from the reference, then
    full depth is the last of them.

    `chosen_on` is the name of the data that the rule was chosen on. `choices` is the number of such calls among whose
    results one is chosen: all of them share delta. `spent` is the delta of earlier attempts, which
    the certificates state too.
    """
    tried = len(candidates) * choices
    tested = [prove(candidate, target, tried, chosen_on, spent) for candidate in candidates]
    proven = [each.candidate for each in tested if each.candidate.policy.certificate is not None]
    if not proven:
        raise no_safe_threshold(target, tested, target.delta / tried)
    full_depth = [each.full_depth for each in tested if each.full_depth is not None]
    return [*sorted(proven, key=lambda candidate: candidate.mean_layer), *full_depth]


def check_target(trace: Trace, target: Guarantee) -> Guarantee:
    """The target, with the loss that it means for this problem."""
    target = target_for(trace.problem, target)
    if target.loss.unit == "query" and not trace.has_lists:
        raise BadOption(
            f"risk={target.risk!r} is for rankings; choose one of {', '.join(RISKS)}, or group the trace by query"
        )
    if target.loss.unit != "query" and trace.has_lists:
        raise BadOption(f"risk={target.risk!r} is for single texts; choose 'overlap' or 'ndcg' for lists")
    if trace.has_lists:
        if isinstance(target.epsilon, Mapping):
            raise BadOption("bounds by class are for single texts; give one bound for lists")
        return target
    if not trace.problem.has_classes and target.tolerance is None:
        raise BadOption("regression needs tolerance=..., within which two numbers count as equal")
    if trace.problem.has_classes and target.tolerance is not None:
        raise BadOption("a tolerance is for regression only; leave it out")
    if target.loss.needs_labels and trace.labels is None:
        raise BadOption(f"risk={target.risk!r} needs labels and the trace has none; pass risk='changed'")
    return target


def target_for(problem: Problem, target: Guarantee) -> Guarantee:
    """The target, with the loss that it means for this problem.

    Some losses of single texts are about decisions or scores, which only `certify` compares.
    """
    if problem.of_tokens:
        if target.risk not in (*OF_TAGS, *OF_TAGS.values()):
            raise BadOption(f"risk={target.risk!r} is not for taggers; choose one of {', '.join(OF_TAGS)}")
        if isinstance(target.epsilon, Mapping):
            raise BadOption("bounds by class are for single texts; give one bound for a tagger")
        return replace(target, risk=OF_TAGS.get(target.risk, target.risk))
    if target.loss.unit == "text":
        raise BadOption(f"risk={target.risk!r} is for taggers; choose one of {', '.join(RISKS)}")
    if target.loss.unit == "example" and target.risk not in (*RISKS, "label_accuracy"):
        raise BadOption(f"risk={target.risk!r} is for `offramp certify`; choose one of {', '.join(RISKS)}")
    if isinstance(target.epsilon, Mapping) and target.risk == "accuracy_drop":
        raise BadOption("risk='accuracy_drop' takes one bound, not one per class; see risk='accuracy'")
    multi = target.risk == "accuracy" and problem.multi_label
    return replace(target, risk="label_accuracy") if multi else target


@dataclass(frozen=True)
class Tested:
    """A rule at one threshold, and the results of its test."""

    candidate: Candidate
    results: Sequence[PartResult]
    full_depth: Candidate | None = None
    """If the rule is a fixed layer, and full depth is proven."""


def prove(candidate: Candidate, target: Guarantee, tried: int, chosen_on: str | None, spent: float) -> Tested:
    """Fixed-sequence testing of one rule along its grid of thresholds.

    The threshold is the loosest that is proven, with a certificate; otherwise the safest that saves anything, which
    failed.
    """
    trace, loss, parts = candidate.trace, target.loss, parts_of(candidate.trace, target)
    trials = try_on_lists(candidate, target) if trace.has_lists else try_on_examples(candidate, target)
    grid = range(len(trials.thresholds))

    def saves(index: int) -> bool:
        return bool((trials.exits(index) < len(trace.layers) - 1).any())

    def at(index: int, is_proven: bool) -> Tested:
        exits = np.bincount(trials.exits(index), minlength=len(trace.layers)) / len(trials.exits(index))
        results = results_of(trials.losses(index), parts, loss.bound)
        tested = replace(
            candidate,
            policy=replace(candidate.policy, threshold=float(trials.thresholds[index])),
            mean_layer=float(exits @ np.asarray(trace.layers)),
        )
        if is_proven:
            stated = replace(target, delta=target.delta + spent)
            certificate = issue(tested, stated, results, exits, tried, chosen_on)
            tested = replace(tested, policy=replace(tested.policy, certificate=certificate))
        return Tested(tested, results)

    passed = first_failure(map(trials.losses, grid), parts, loss.bound, target.delta / tried)
    proven = next(filter(saves, grid[:passed][::-1]), None)
    if proven is None:
        return at(next(filter(saves, grid), 0), is_proven=False)
    if candidate.policy.rule.reads != "layer" or saves(0):
        return at(proven, is_proven=True)
    return replace(at(proven, is_proven=True), full_depth=at(0, is_proven=True).candidate)


@dataclass(frozen=True)
class Trials:
    """A rule at each threshold of its grid."""

    thresholds: Array
    """The safest first."""
    losses: Callable[[int], Array]
    """(examples,) at one of them; (texts,) if those are read in windows."""
    exits: Callable[[int], Array]
    """(rows,) at one of them."""


def try_on_examples(candidate: Candidate, target: Guarantee) -> Trials:
    """From one pass of the rule."""
    trace, policy = candidate.trace, candidate.policy
    output = apply_rule(trace, policy)
    table = build_exit_table(policy, output.readiness, trace.layers, threshold_grid(policy.rule, trace))
    losses = target.loss.values(output.predictions, reference_of(trace, target.tolerance))
    examples = np.arange(len(trace))

    def exits(index: int) -> Array:
        return table.exits(len(table.thresholds) - 1 - index)

    def of_texts(index: int) -> Array:
        """Any window may change a text: what it loses is at most what its worst window does."""
        return trace.by_text(losses[exits(index), examples])

    return Trials(table.thresholds[::-1], of_texts, exits)


def try_on_lists(candidate: Candidate, target: Guarantee) -> Trials:
    """One pass for each threshold: the documents that have exited affect the others."""
    policy, rankings = candidate.policy, Rankings(candidate.trace, target.top_k)
    grid = threshold_grid(policy.rule, candidate.trace)
    thresholds = grid[np.argsort(-policy.rule.level(grid))]

    def decide(policy: Policy, index: int) -> Decision:
        changed = replace(policy, threshold=float(thresholds[index]))
        return changed.decide_trace(candidate.trace, target.top_k)

    def losses(index: int) -> Array:
        """The guarantee covers both ways to rank."""
        both = (
            rankings.losses(decide(each, index).logits, target.risk)
            for each in (policy, policy.with_exact_top())
        )
        return np.maximum(*both)

    return Trials(thresholds, losses, lambda index: decide(policy, index).exits)


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
    if isinstance(rule, Rank):
        return np.array([0.0, *np.geomspace(*UNLIKELY, RANK_GRID_SIZE).round(5)])
    if rule.probability:
        probabilities = 1 / (1 + np.exp(-np.linspace(*LOG_ODDS, GRID_SIZE)))
        return np.unique([round_threshold(value) for value in probabilities.tolist()])
    logits = np.zeros((GRID_SIZE, 1, classes))
    lead = np.linspace(0, LARGEST_LEAD, GRID_SIZE)[:, None]
    if trace.problem.multi_label:
        logits[:] = lead[..., None]  # the least confident label decides
    else:
        logits[..., 0] = lead
    texts = Lists.consecutive(np.ones(GRID_SIZE, int))  # of one token each, if those are tagged
    readiness = fold(rule, logits, problem_type=trace.problem, lists=texts).readiness[:, 0]
    return np.unique([round_threshold(value) for value in (rule.sign * readiness).tolist()])


def parts_of(trace: Trace, target: Guarantee) -> list[Part]:
    """All examples, or one part per class; and of each, if texts repeat or were learned from, the unseen ones."""
    parts, unseen = classes_of(trace, target), trace.by_text(trace.unseen())
    if unseen.all():
        return parts
    return [*parts, *(replace(part, rows=part.rows & unseen, unseen=True) for part in parts)]


def classes_of(trace: Trace, target: Guarantee) -> list[Part]:
    """All examples, or one part per class: by the reference's prediction, or for accuracy by label."""
    if not isinstance(target.epsilon, Mapping):
        return [Part(target.epsilon, trace.by_text(np.ones(len(trace), bool)))]
    if trace.problem != SINGLE_LABEL:
        raise BadOption("bounds by class need a single-label problem; give one bound for all")
    names = trace.label_names or tuple(map(str, range(trace.logits.shape[-1])))
    belongs = trace.labels if target.loss.needs_labels else trace.reference_predictions()
    bounds = class_bounds(target.epsilon, names)
    return [Part(epsilon, np.asarray(belongs == index), names[index]) for index, epsilon in bounds.items()]


def class_bounds(bounds: Mapping[str, float], names: Sequence[str]) -> dict[int, float]:
    """The bound of each class, by its index."""
    classes = class_indices(bounds, names)
    unbounded = [name for index, name in enumerate(names) if index not in classes]
    if unbounded:
        raise BadOption(f"no bound for {', '.join(unbounded)}; give one for every class")
    return dict(zip(classes, bounds.values(), strict=True))


def no_safe_threshold(target: Guarantee, tested: Sequence[Tested], delta: float) -> NoSafeThreshold:
    """Why nothing was proven, and how many examples would have been enough."""
    weakest = [
        (max(each.results, key=lambda result: result.p_value), each.candidate.fitted_on)
        for each in tested
        if each.candidate.mean_layer < each.candidate.trace.layers[-1]
    ]
    if not weakest:
        return NoSafeThreshold(NO_EARLY_EXIT)
    nearest, fitted_on = min(weakest, key=lambda item: item[0].p_value)
    return too_risky(target.risk, nearest, delta, fitted_on)


def too_risky(risk: str, result: PartResult, delta: float, fitted_on: int) -> NoSafeThreshold:
    """Why the safest threshold was not proven, and how many examples would have been enough."""
    part, loss = result.part, LOSSES[risk]
    examples_needed = BOUNDS[result.bound].examples_needed
    without_errors = examples_needed([0.0], part.epsilon, delta)
    needed = examples_needed(result.losses, part.epsilon, delta) if result.examples else without_errors
    examples = count(result.examples, "distinct unseen text" if part.unseen else loss.unit)
    if part.of_class is not None:
        examples += f" of the class {part.of_class!r}"
    if fitted_on:
        examples += f" (not counting {fitted_on} that the rule was fitted on)"
    wanted = f"{risk} of at most {part.epsilon:g} with confidence {1 - delta:.4g}"
    if without_errors is None or result.examples < without_errors:
        least = "more than a billion" if without_errors is None else str(without_errors)
        reason = f"{examples} cannot prove {wanted}: even with no errors it takes {least}"
        advice = f"Calibrate on more {'distinct texts' if part.unseen else loss.units}, or allow more risk."
        return NoSafeThreshold(f"{reason}. {advice}", needed or without_errors, part.of_class)
    seen = f"even the strictest threshold that saves any layers shows a risk of {result.risk:.4f}"
    advice = (
        f"More {loss.units} would not help; allow a larger risk, use another rule, or train the exits further."
        if needed is None
        else f"If that is the true risk, about {needed} are needed."
    )
    reason = f"no threshold can be proven to have {wanted} on {examples}: {seen}"
    return NoSafeThreshold(f"{reason}. {advice}", needed, part.of_class)


def issue(
    proven: Candidate,
    target: Guarantee,
    results: Sequence[PartResult],
    exits: Array,
    rules_tried: int,
    chosen_on: str | None,
) -> Certificate:
    trace, unseen = proven.trace, [result for result in results if result.part.unseen]
    results = [result for result in results if not result.part.unseen]
    classes = [result for result in results if result.part.of_class is not None]
    return Certificate(
        risk=target.risk,
        epsilon={str(result.part.of_class): result.part.epsilon for result in classes}
        or results[0].part.epsilon,
        delta=target.delta,
        bound=target.loss.bound,
        examples=sum(result.examples for result in results),
        observed_risk=mean_risk(results),
        unseen=sum(result.examples for result in unseen) if unseen else None,
        unseen_risk=mean_risk(unseen) if unseen else None,
        reference=trace.reference_name,
        data=trace.data,
        tolerance=target.tolerance,
        top_k=target.top_k,
        decision=trace.decision,
        by_class={
            str(result.part.of_class): {"examples": result.examples, "observed_risk": result.risk}
            for result in classes
        }
        or None,
        rules_tried=rules_tried,
        fitted_on=proven.fitted_on,
        conditions=Conditions(
            policy=str(proven.policy),
            mean_layer=proven.mean_layer,
            exits=tuple(exits.tolist()),
            rule_chosen_on=chosen_on,
            **trace.conditions(),
        ),
    )


def mean_risk(results: Sequence[PartResult]) -> float:
    return float(np.concatenate([result.losses for result in results]).mean())
