"""calibrate(): the policy of a rule that reaches a target on a trace."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from offramp.errors import BadOption, ReusedData
from offramp.guarantees import Guarantee
from offramp.guarantees.guarantee import BY_EXIT
from offramp.measuring.curve import parse_rule
from offramp.measuring.exit_table import default_tolerance, fit_rule
from offramp.measuring.proof import certify, check_target
from offramp.measuring.targets import Candidate, MaxLoss, Target, reach
from offramp.policy import Policy
from offramp.policy.text import fitted_names, rule_name
from offramp.problems import Problem
from offramp.row_hashes import split_rows
from offramp.rules import RULES
from offramp.rules.base import Rule
from offramp.rules.rank import Rank
from offramp.trace import Trace
from offramp.wording import count

SAME_AS_ENTROPY = ("confidence", "margin")
"""For two classes, and where each label is yes or no; for tags nearly so."""
DEFAULT_RULES = ("agreement", "entropy", "confidence", "margin", "layer")
FIT_SHARE, FIT_MOST = 3, 2000
"""A rule that learns is fitted on a third of the examples, at most this many: it has few coefficients."""
RANK_FIT_SHARE = 5
"""A fifth of the queries: each has many documents."""
TRAINING_SHARE = 0.01
"""The share of texts that may also be in the training data: short texts recur by chance."""
AS_GOOD = 1.02
"""A static cut is as good if its mean layer is at most this many times that of the best policy."""

Rules = str | Policy | Sequence[str | Policy] | None


def calibrate(
    trace: Trace,
    rule: Rules,
    target: Target,
    *,
    fit_on: Trace | None = None,
    chosen_on: Trace | str | None = None,
    choices: int = 1,
    spent: float = 0.0,
    allow_training_rows: bool = False,
) -> "Calibration":
    """A policy that reaches the target on this trace, or `NoSafeThreshold`, never something weaker.

    A rule that learns is fitted on a third of the examples, and its threshold is calibrated on the others. The split
    is random, but the same for the same texts, so that there is no seed to try.

    Where texts repeat, or the model was trained on some, a guarantee is proven twice: on all rows, which is valid if
    texts keep their frequency, and on distinct texts that nothing was learned from, which is valid if they do not.

    Args:
        trace: the calibration examples; if they are lists (`Trace.grouped`), the target is a guarantee about
            rankings, and the rule is by default `rank`.
        rule: a name, or a policy or its text, whose threshold is replaced; None tries those of agreement, entropy,
            confidence, margin and layer that work for this problem. If there are several, the best for the target is
            chosen; a guarantee pays for that choice by splitting delta among them, of which agreement gets 80%; other
            targets warn. A policy whose rule is already fitted keeps its fit, but not with a guarantee, because it
            may be to these examples.
        target: what to reach.
        fit_on: other examples for a rule that learns, so that all of the trace can calibrate its threshold.
        chosen_on: the trace, or the name of the data, that the rule and its options were chosen on; a warning says
            if they are examples of this trace.
        choices: how many calibrations with a guarantee, such as one for each precision, share its delta because one
            of their policies will be chosen.
        spent: the delta of earlier attempts on the same examples, which a certificate adds to its own; commands
            remember attempts (`offramp.guarantees.attempts`).
        allow_training_rows: accept texts that the model was trained on; otherwise more than a few are refused. A
            guarantee must also be proven on the others.

    *Example*
    >>> import numpy as np
    >>> logits = np.zeros((400, 2, 2), np.float32)
    >>> logits[:, 0, 0], logits[:, 1, 0] = np.linspace(-0.2, 4, 400), 4
    >>> trace = Trace(logits, (1, 2), labels=None, lengths=np.ones(400), ids=np.arange(400))
    >>> policy = calibrate(trace, "entropy", Guarantee(epsilon=0.02, delta=0.05)).policy
    >>> policy.certificate.examples, policy.certificate.observed_risk
    (400, 0.005)
    """
    if not len(trace):
        raise BadOption("the trace is empty; there is nothing to calibrate on")
    trace, fit_on = trace.decided(), None if fit_on is None else fit_on.decided()
    check_held_out(trace, allow_training_rows, proves_unseen=isinstance(target, Guarantee))
    rules = rules_to_try(trace, rule, target)
    policies = [*map(parse_rule, rules)]
    for policy in policies:
        if not policy.rule.takes_threshold:
            raise BadOption(f"{policy} has no threshold to calibrate")
    if chosen_on is not None and reuses(trace, chosen_on):
        warn(f"the rule was chosen on {name_of(chosen_on)!r} and the threshold is calibrated on it")

    if trace.has_lists and not isinstance(target, Guarantee):
        raise BadOption("a trace of lists takes a Guarantee with risk='overlap' or 'ndcg'")
    if isinstance(target, Guarantee):
        target = check_target(trace, target)
        policies = [replace(policy, rule=unfitted(policy.rule, target)) for policy in policies]
        candidates = [fit(trace, policy, fit_on, target) for policy in policies]
        reached = certify(candidates, target, name_of(chosen_on), choices, spent)
    else:
        candidates = [fit(trace, policy, fit_on) for policy in policies]
        if len(policies) > 1:
            warn(f"one of {len(policies)} rules is chosen by the data that sets its threshold")
        reached = reach(candidates, target)
    learned = [candidate for candidate in candidates if candidate.fitted_on]
    best = reached[0]
    return Calibration(
        policy=best.policy,
        trace=best.trace,
        rules=tuple(map(str, rules)),
        fitted=tuple(str(rule) for rule, of in zip(rules, candidates, strict=True) if of.fitted_on),
        fitted_on=learned[0].fitted_on if learned else 0,
        calibrated_on=(learned[0].trace if learned else trace).whole_examples,
        reached=tuple(reached),
        static_cut=next((candidate for candidate in reached if as_good(candidate, best, target)), None),
    )


@dataclass(frozen=True)
class Calibration:
    """A policy that reaches a target, and how it was found."""

    policy: Policy
    trace: Trace
    """The examples that its threshold was chosen on."""
    rules: tuple[str, ...]
    """The rules that were tried."""
    fitted: tuple[str, ...]
    """Those of them that were fitted to examples of the trace."""
    fitted_on: int
    """The number of examples that they were fitted on."""
    calibrated_on: int
    """The number of other examples, which their thresholds were chosen on."""
    reached: tuple[Candidate, ...]
    """The policies that reach the target, the best of each rule; for a guarantee maybe full depth too."""
    static_cut: Candidate | None
    """A fixed layer that is as good as the policy, see `as_good`."""


def check_held_out(trace: Trace, allow_training_rows: bool, proves_unseen: bool) -> None:
    """On its training texts a model is surer, and its exits agree more, than on any others."""
    known = np.zeros(0, bool) if trace.trained_on is None else trace.by_text(trace.trained_on)
    rows, seen = len(known), int(known.sum())
    if not seen or (allow_training_rows and proves_unseen):
        return
    message = f"the model was trained on {seen} of the {rows} rows of the trace"
    if allow_training_rows or seen <= TRAINING_SHARE * rows:
        warn(message)
    else:
        raise BadOption(f"{message}; calibrate on others, or pass allow_training_rows=True.")


def rules_to_try(trace: Trace, rule: Rules, target: Target) -> Sequence[str | Policy]:
    if rule is None:
        return default_rules(trace, target)
    rules = [rule] if isinstance(rule, str | Policy) else rule
    if not rules:
        raise BadOption("name at least one rule to calibrate")
    return rules


def default_rules(trace: Trace, target: Target) -> list[str]:
    """Those of this problem; agreement also needs a tolerance in regression, and examples to be fitted on."""
    if trace.has_lists:
        return ["rank"]
    rules = rules_of(trace.problem, trace.logits.shape[-1])
    if len(trace) < 2 * FIT_SHARE:
        rules.remove("agreement")
    if trace.problem.has_classes:
        return rules
    tolerance = target.tolerance if isinstance(target, Guarantee) else default_tolerance(trace)
    options = {"agreement": f"agreement:0,tolerance={tolerance}"} if tolerance else {"agreement": ""}
    return [text for name in rules if (text := options.get(name, name))]


def rules_of(problem: Problem, classes: int) -> list[str]:
    """Those of `DEFAULT_RULES` that work for a problem and differ: each costs a share of delta."""
    rules = [name for name in DEFAULT_RULES if problem.has_classes or RULES[name].regression]
    if problem.multi_label or problem.of_tokens or classes == 2:
        return [name for name in rules if name not in SAME_AS_ENTROPY]
    return rules


def fit(trace: Trace, policy: Policy, fit_on: Trace | None, target: Guarantee | None = None) -> Candidate:
    """A rule that learns is fitted on some examples and calibrated on the rest; any other rule is calibrated on all.
    With bounds by exit, the policies to test are also searched for on some of the examples."""
    finds_policies = target is not None and target.by == BY_EXIT and policy.rule.reads != "layer"
    if policy.rule.is_fitted and not finds_policies:
        return Candidate(policy, trace)
    if fit_on is not None:
        return Candidate(fit_rule(policy, fit_on, target), trace.without(fit_on), fit_on)
    share, unit = (RANK_FIT_SHARE, "query") if trace.has_lists else (FIT_SHARE, "example")
    together = bool(trace.group_column) or trace.continues is not None
    some, others = split_rows(trace.keys(), [(1 / share, FIT_MOST)], together=together)
    if len(some) < 2:
        number = count(trace.whole_examples, unit)
        raise BadOption(
            f"too few to fit {rule_name(policy.rule)} and calibrate its threshold: {number}, expected at least "
            f"{2 * share}"
        )
    fit_on = trace[some]
    return Candidate(fit_rule(policy, fit_on, target), trace[others].without(fit_on), fit_on)


def unfitted(rule: Rule, target: Guarantee) -> Rule:
    """The rule without what it was fitted to; `rank` for the target's top k."""
    if isinstance(rule, Rank):
        return Rank(target.top_k or rule.top_k)
    learned = fitted_names(type(rule))
    return replace(cast(Any, rule), **dict.fromkeys(learned)) if learned else rule


def as_good(static: Candidate, best: Candidate, target: Target) -> bool:
    """Whether this is a static cut that costs about as little as the best policy, or for a cost scores as high."""
    if static.policy.rule.reads != "layer":
        return False
    if isinstance(target, Guarantee | MaxLoss):
        full_depth = static.trace.layers[-1]
        return static.mean_layer < full_depth and static.mean_layer <= AS_GOOD * best.mean_layer
    return static.score >= best.score


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
        f"{what}: expect a worse score on new data, or hold examples out.", ReusedData, stacklevel=4
    )
