"""Learn then Test: the loosest threshold whose risk is proven to be low.

*Reference*: Angelopoulos et al. 2021, arXiv:2110.01052; for early exits Schuster et al. 2021, arXiv:2104.08803.

Thresholds are tested from the safest down (see `offramp.guarantees.testing`), in a sequence that is fixed before the
data are seen: `threshold_grid`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from offramp.errors import BadOption, NoSafeThreshold
from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.certificate import Certificate, Conditions, ProvenBound
from offramp.guarantees.guarantee import BY_CLASS, BY_EXIT, Guarantee
from offramp.guarantees.losses import LOSSES, RISKS, Loss
from offramp.guarantees.testing import (
    Part,
    PartResult,
    class_members,
    class_names,
    first_failure,
    results_of,
)
from offramp.lists import Lists
from offramp.measuring.by_exit import exits_tested, policies_by_exit
from offramp.measuring.exit_table import build_exit_table
from offramp.measuring.losses import losses_on, reference_of
from offramp.measuring.targets import NO_EARLY_EXIT, Candidate
from offramp.policy import Decision, Policy, fold
from offramp.policy.text import round_threshold
from offramp.problems import Array
from offramp.rules.agreement import Agreement
from offramp.rules.base import Rule
from offramp.rules.rank import Rank
from offramp.trace import Trace
from offramp.wording import count

GRID_SIZE = 400
LOG_ODDS = -6.0, 14.0
"""The range of a grid of probabilities."""
RANK_GRID_SIZE = 60
UNLIKELY = 0.0005, 0.25
"""The range of a grid of probabilities below which a document is dropped."""
AGREEMENT_SHARE = 0.8
"""The share of delta that `agreement` gets beside other rules: it mostly exits earliest, and with less it would exit
later."""
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
    shares = shares_of_delta([candidate.policy.rule for candidate in candidates])
    levels = [target.delta * share / choices for share in shares]
    tested = [prove(candidate, target, level) for candidate, level in zip(candidates, levels, strict=True)]
    proven = sorted((one for one in tested if one.is_proven), key=lambda one: one.candidate.mean_layer)
    if not proven:
        raise no_safe_threshold(target, tested, levels)
    proven += [one.full_depth for one in tested if one.full_depth is not None]
    stated, tried = replace(target, delta=target.delta + spent), len(candidates) * choices
    return [issue(one, stated, tried, chosen_on) for one in proven]


def shares_of_delta(rules: Sequence[Rule]) -> list[float]:
    """The share of each rule, fixed before the data are seen.

    >>> [round(share, 2) for share in shares_of_delta([Agreement(), Rank(), Rank()])]
    [0.8, 0.1, 0.1]
    """
    learned = [isinstance(rule, Agreement) for rule in rules]
    number = sum(learned)
    if number in (0, len(rules)):
        return [1 / len(rules)] * len(rules)
    most, rest = AGREEMENT_SHARE / number, (1 - AGREEMENT_SHARE) / (len(rules) - number)
    return [most if learns else rest for learns in learned]


def check_target(trace: Trace, target: Guarantee) -> Guarantee:
    """The target for this trace: with the losses that it means, and the groups of the trace by name."""
    if target.unit == "query" and not trace.has_lists:
        raise BadOption(
            f"risk={target.risk!r} is for rankings; choose one of {', '.join(RISKS)}, or group the trace by query"
        )
    if target.unit != "query" and trace.has_lists:
        raise BadOption(f"risk={target.risk!r} is for single texts; choose 'overlap' or 'ndcg' for lists")
    target = target.for_problem(trace.problem)
    if trace.has_lists:
        return target
    if trace.problem.of_tokens:
        target.check_tags(trace.scheme)
    if "score" in target.risks and trace.decision:
        raise BadOption(
            f"risk='score' is about all scores, and decide={trace.decision!r} makes them yes or no; bound 'changed', "
            "'missed' or 'false_alarm', or leave out decide=..."
        )
    if target.needs_labels and trace.labels is None:
        raise BadOption(f"risk={target.risk!r} needs labels and the trace has none; pass risk='changed'")
    if target.by in ("", BY_EXIT):
        return target
    if target.by == BY_CLASS and not trace.problem.has_classes:
        raise BadOption("by='class' is for classes, and this model predicts numbers")
    if target.by not in (BY_CLASS, trace.category_column):
        others = f", but {trace.category_column!r}" if trace.category_column else ""
        raise BadOption(
            f"by={target.by!r}: the trace has no such categories{others}; collect it again with by={target.by!r}"
        )
    names = classes_of(trace) if target.by == BY_CLASS else trace.category_names
    return target.with_group_names(names)


@dataclass(frozen=True)
class Tested:
    """A rule at one threshold, and the results of its test."""

    candidate: Candidate
    results: Sequence[PartResult]
    exits: Array
    """(exits,) the fraction of examples that take each."""
    is_proven: bool
    full_depth: "Tested | None" = None
    """If the rule is a fixed layer, and full depth is proven."""


def prove(candidate: Candidate, target: Guarantee, level: float) -> Tested:
    """Fixed-sequence testing of one rule along its grid of thresholds.

    The threshold is the loosest that is proven; otherwise the safest that saves anything, which failed.
    """
    trace = candidate.trace
    trials = trials_of(candidate, target, level)
    grid = range(len(trials.policies))
    if not grid:
        return Tested(candidate, [], np.zeros(0), is_proven=False)
    parts = [] if target.by == BY_EXIT else parts_of(trace, target)

    def saves(index: int) -> bool:
        return bool((trials.exits(index) < len(trace.layers) - 1).any())

    def test(index: int) -> list[PartResult]:
        tested = parts
        if target.by == BY_EXIT:
            members = exits_tested(trials.policies[index], trace, trials.exits(index))
            tested = parts_of(trace, target, members)
        return results_of(trials.losses(index), tested)

    def at(index: int, is_proven: bool) -> Tested:
        exits = np.bincount(trials.exits(index), minlength=len(trace.layers)) / len(trials.exits(index))
        mean_layer = float(exits @ np.asarray(trace.layers))
        chosen = replace(candidate, policy=trials.policies[index], mean_layer=mean_layer)
        return Tested(chosen, test(index), exits, is_proven)

    passed = first_failure(map(test, grid), level)
    loosest = next(filter(saves, grid[:passed][::-1]), None)
    if loosest is None:
        return at(next(filter(saves, grid), 0), is_proven=False)
    if candidate.policy.rule.reads != "layer" or saves(0):
        return at(loosest, is_proven=True)
    return replace(at(loosest, is_proven=True), full_depth=at(0, is_proven=True))


@dataclass(frozen=True)
class Trials:
    """The policies of one rule that are tested in turn."""

    policies: Sequence[Policy]
    """The safest first."""
    losses: Callable[[int], Mapping[str, Array]]
    """By risk, (examples,) under one of them; (texts,) if those are read in windows."""
    exits: Callable[[int], Array]
    """(rows,) under one of them."""


def trials_of(candidate: Candidate, target: Guarantee, level: float) -> Trials:
    policy, trace = candidate.policy, candidate.trace
    grid = threshold_grid(policy.rule, trace)
    if target.by == BY_EXIT and candidate.fit_on is not None:
        return pass_by_pass(policies_by_exit(candidate, target, grid, level), trace, target)
    if trace.has_lists:  # the documents that have exited affect the others
        safest_first = grid[np.argsort(-policy.rule.level(grid))].tolist()
        policies = [replace(policy, threshold=threshold) for threshold in safest_first]
        return pass_by_pass(policies, trace, target)
    return in_one_pass(policy, grid, trace, target)


def pass_by_pass(policies: Sequence[Policy], trace: Trace, target: Guarantee) -> Trials:
    """Trials with one pass for each policy."""

    @lru_cache(2)
    def decide(policy: Policy) -> Decision:
        return policy.decide_trace(trace, target.top_k)

    def losses(index: int) -> dict[str, Array]:
        """A guarantee about rankings covers both ways to rank."""
        ways = dict.fromkeys((policies[index], policies[index].with_exact_top()))
        by_way = [
            losses_on(trace, decide(way).logits, target.risks, target.tolerance, target.top_k) for way in ways
        ]
        return {risk: np.maximum.reduce([values[risk] for values in by_way]) for risk in target.risks}

    return Trials(policies, losses, lambda index: decide(policies[index]).exits)


def in_one_pass(policy: Policy, grid: Array, trace: Trace, target: Guarantee) -> Trials:
    """Trials of single thresholds, from one pass of the rule."""
    folded = fold(policy.rule, trace.logits, trace.gates, trace.layers, trace.problem, trace.lists)
    table = build_exit_table(policy, folded.readiness, trace.layers, grid)
    losses = losses_on(trace, folded.logits, target.risks, target.tolerance)
    examples = np.arange(len(trace))
    policies = [replace(policy, threshold=threshold) for threshold in table.thresholds[::-1].tolist()]

    def exits(index: int) -> Array:
        return table.exits(len(policies) - 1 - index)

    def of_texts(index: int) -> dict[str, Array]:
        """Any window may change a text: what it loses is at most what its worst window does."""
        taken = exits(index)
        return {risk: trace.by_text(values[taken, examples]) for risk, values in losses.items()}

    return Trials(policies, of_texts, exits)


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


def parts_of(trace: Trace, target: Guarantee, exits: Mapping[str, Array] | None = None) -> list[Part]:
    """A part for each risk and group; and of each, if texts repeat or were learned from, the unseen ones. `exits` are
    the groups (examples,) by exit."""
    every, unseen = np.ones(len(trace), bool), trace.unseen()
    reference = None if trace.has_lists else reference_of(trace, target.tolerance)
    parts = []
    for risk, loss in target.losses.items():
        counted = every if loss.among is None or reference is None else loss.among(reference)
        groups = groups_of(trace, target.by, loss) if exits is None else exits
        bounds = target.bounds_of(risk, groups)
        for group, members in groups.items():
            parts.append(Part(risk, bounds[group], trace.by_text(counted & members), group))
    if unseen.all():
        return parts
    new = trace.by_text(unseen)
    return [*parts, *(replace(part, rows=part.rows & new, unseen=True) for part in parts)]


def groups_of(trace: Trace, by: str, loss: Loss) -> dict[str, Array]:
    """(examples,) the members of each group."""
    if not by:
        return {"": np.ones(len(trace), bool)}
    if by == BY_CLASS:
        classes = trace.labels if loss.needs_labels else trace.reference_predictions()
        return class_members(trace.problem, classes_of(trace), np.asarray(classes))
    categories = np.asarray(trace.categories)
    return {name: categories == index for index, name in enumerate(trace.category_names)}


def classes_of(trace: Trace) -> list[str]:
    return class_names(trace.problem, trace.label_names or [*map(str, range(trace.logits.shape[-1]))])


def no_safe_threshold(
    target: Guarantee, tested: Sequence[Tested], levels: Sequence[float]
) -> NoSafeThreshold:
    """Why nothing was proven, and how many examples would have been enough."""
    weakest = [
        (max(one.results, key=lambda result: result.p_value), level, one.candidate.fitted_on)
        for one, level in zip(tested, levels, strict=True)
        if one.candidate.mean_layer < one.candidate.trace.layers[-1]
    ]
    if not weakest:
        return NoSafeThreshold(
            NO_EARLY_EXIT if target.by != BY_EXIT else too_few_by_exit(target, max(levels))
        )
    nearest, level, fitted_on = min(weakest, key=lambda item: item[0].p_value / item[1])
    return too_risky(target, nearest, level, fitted_on, tested[0].candidate.trace.reference_name)


def too_few_by_exit(target: Guarantee, delta: float) -> str:
    needed = BOUNDS[target.losses[target.risks[0]].bound].examples_needed
    least = max(needed([0.0], target.bounds_of(risk, [""])[""], delta) or 0 for risk in target.risks)
    return (
        f"no exit is taken by enough examples to prove its bound: even without errors that takes {least} examples at "
        "each exit, the last included. Calibrate on more examples, or allow more risk."
    )


def too_risky(
    target: Guarantee, result: PartResult, delta: float, fitted_on: int, reference: str
) -> NoSafeThreshold:
    """Why the safest threshold was not proven, and how many examples would have been enough."""
    part, loss = result.part, LOSSES[result.part.risk]
    examples_needed = BOUNDS[result.bound].examples_needed
    without_errors = examples_needed([0.0], part.epsilon, delta)
    needed = examples_needed(result.losses, part.epsilon, delta) if result.examples else without_errors
    examples = count(result.examples, "distinct unseen text" if part.unseen else loss.unit)
    if loss.among is not None:
        examples += loss.examples.format(reference=reference or "full depth").removeprefix(loss.units)
    if part.group:
        examples += f" of the {target.by} {part.group!r}"
    if fitted_on:
        examples += f" (not counting {fitted_on} that the rule was fitted on)"
    wanted = f"{part.risk} of at most {part.epsilon:g} with confidence {1 - delta:.4g}"
    if without_errors is None or result.examples < without_errors:
        least = "more than a billion" if without_errors is None else str(without_errors)
        reason = f"{examples} cannot prove {wanted}: even with no errors it takes {least}"
        advice = f"Calibrate on more {'distinct texts' if part.unseen else loss.units}, or allow more risk."
        return NoSafeThreshold(f"{reason}. {advice}", needed or without_errors, part.group)
    seen = f"even the strictest threshold that saves any layers shows a risk of {result.observed_risk:.4f}"
    advice = (
        f"More {loss.units} would not help; allow a larger risk, use another rule, or train the exits further."
        if needed is None
        else f"If that is the true risk, about {needed} are needed."
    )
    reason = f"no threshold can be proven to have {wanted} on {examples}: {seen}"
    return NoSafeThreshold(f"{reason}. {advice}", needed, part.group)


def issue(proven: Tested, target: Guarantee, rules_tried: int, chosen_on: str | None) -> Candidate:
    """The candidate whose policy has its certificate."""
    candidate, trace = proven.candidate, proven.candidate.trace
    unseen = {
        (result.part.risk, result.part.group): result for result in proven.results if result.part.unseen
    }
    certificate = Certificate(
        bounds=tuple(
            proven_bound(result, unseen.get((result.part.risk, result.part.group)), trace, target)
            for result in proven.results
            if not result.part.unseen
        ),
        delta=target.delta,
        examples=trace.whole_examples,
        by=target.by,
        unseen=int(trace.by_text(trace.unseen()).sum()) if unseen else None,
        reference=trace.reference_name,
        data=trace.data,
        top_k=target.top_k,
        decision=trace.decision,
        rules_tried=rules_tried,
        fitted_on=candidate.fitted_on,
        conditions=Conditions(
            policy=str(candidate.policy),
            mean_layer=candidate.mean_layer,
            exits=tuple(proven.exits.tolist()),
            rule_chosen_on=chosen_on,
            **trace.conditions(),
        ),
    )
    return replace(candidate, policy=replace(candidate.policy, certificate=certificate))


def proven_bound(
    result: PartResult, unseen: PartResult | None, trace: Trace, target: Guarantee
) -> ProvenBound:
    part, loss = result.part, LOSSES[result.part.risk]
    compares_numbers = loss.compares == "scores" or not trace.problem.has_classes
    return ProvenBound(
        risk=part.risk,
        epsilon=part.epsilon,
        examples=result.examples,
        observed_risk=result.observed_risk,
        bound=result.bound,
        group=part.group,
        tolerance=target.tolerance if compares_numbers else None,
        unseen=None if unseen is None else unseen.examples,
        unseen_risk=None if unseen is None else unseen.observed_risk,
    )
