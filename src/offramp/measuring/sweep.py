"""sweep(): apply each rule once to a trace, then evaluate every threshold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from offramp.errors import BadOption
from offramp.measuring.cost import cost, macs
from offramp.measuring.curve import Curve, Point, Sweep, needs_labels, parse_rule
from offramp.measuring.exit_table import ExitTable, apply_rule, build_exit_table, fit_rule, useful_thresholds
from offramp.measuring.scores import AGREEMENT, intervals, metric_names, score, scores
from offramp.numerics import finite_rows
from offramp.policy import Policy
from offramp.policy.text import fitted_names
from offramp.problems import Array
from offramp.rules.fixed import Oracle
from offramp.rules.rank import Rank
from offramp.trace import Trace
from offramp.wording import did_you_mean

Thresholds: TypeAlias = str | Sequence[float] | Mapping[str, Sequence[float]]


def sweep(
    trace: Trace,
    rules: str | Policy | Sequence[str | Policy],
    thresholds: Thresholds = "auto",
    *,
    points: int = 100,
    bootstrap: int = 0,
    seed: int = 0,
    padded_to: int | None = None,
) -> Sweep:
    """Score and cost of every rule at every threshold, from one trace.

    A rule is a name ("entropy", "patience", "layer", "never", "oracle"), or a policy or its text, whose options are
    kept and whose threshold is replaced. A rule that learns and is not fitted ("agreement") is fitted here: each
    half of the examples, drawn with `seed`, is scored by a rule fitted on the other half.

    `thresholds` are given for all rules, by rule, or as "auto": up to `points` that give different exits. With
    `bootstrap` resamples each point gets an interval. That costs next to nothing for accuracy and agreement, one
    sort per point for other metrics of one label per example, and one evaluation of the metric per resample
    otherwise. MACs are counted for the real lengths, or with all texts `padded_to` one length.

    *Example*
    >>> logits = np.array([[[2.0, 0.0], [3.0, 0.0]], [[0.5, 0.0], [0.0, 3.0]]], np.float32)
    >>> trace = Trace(logits, (1, 2), labels=np.array([0, 1]), lengths=np.array([5, 5]), ids=np.arange(2))
    >>> for point in sweep(trace, "entropy").curves["entropy"].points:
    ...     print(round(point.threshold, 2), point.scores["acc"], point.cost.mean_layer)
    0.7 0.5 1.0
    0.5 1.0 1.5
    0.37 1.0 2.0
    """
    trace = trace.decided()
    if not len(trace):
        raise BadOption("the trace has no examples")
    if trace.has_lists:
        raise BadOption("a sweep is about single texts, and this is a trace of lists; calibrate it instead")
    metrics = metric_names(trace)

    def curve(rule: str | Policy, wanted: str | Sequence[float]) -> Curve:
        policy = policy_for(rule, trace)
        if isinstance(policy.rule, Rank):
            raise BadOption("rank compares the documents of a query; calibrate it with a guarantee instead")
        output = apply_rule(trace, policy, seed)
        policy = fit_rule(policy, trace)
        values = thresholds_for(policy, wanted, output.readiness, trace, points)
        table = build_exit_table(policy, output.readiness, trace.layers, values)
        by_metric = scores(trace, table, output)
        around = intervals(trace, table, output, bootstrap, seed) if bootstrap else None
        histogram, spent = table.histogram(), mean_macs(trace, policy, table, padded_to)

        def point(index: int) -> Point:
            return Point(
                threshold=None if not policy.rule.takes_threshold else float(table.thresholds[index]),
                scores={name: float(by_metric[name][index]) for name in metrics},
                cost=cost(histogram[index], trace.layers, None if spent is None else spent[index]),
                exits=tuple(histogram[index].tolist()),
                interval=None if around is None else around[index],
            )

        learned = policy if fitted_names(type(policy.rule)) else None
        return Curve(str(rule), tuple(map(point, range(len(table.thresholds)))), learned)

    by_text = {str(rule): rule for rule in ([rules] if isinstance(rules, str | Policy) else rules)}
    by_rule = thresholds_by_rule(thresholds, [*by_text])
    return Sweep(
        curves={rule: curve(by_text[rule], wanted) for rule, wanted in by_rule.items()},
        per_exit=curve("layer", "auto").points,
        layers=tuple(trace.layers),
        metrics=metrics,
        examples=trace.whole_examples,
        not_finite=count_not_finite(trace),
        data=trace.data,
        fingerprint=trace.fingerprint,
    )


def count_not_finite(trace: Trace) -> int:
    """The number of examples with a logit that is NaN or infinite."""
    wrong, lists = np.asarray(~np.isfinite(trace.logits).all((1, 2))), trace.lists
    return int(wrong.sum() if lists is None else (lists.total(wrong, counted=False) > 0).sum())


def thresholds_by_rule(thresholds: Thresholds, rules: Sequence[str]) -> dict[str, str | Sequence[float]]:
    by_rule = thresholds if isinstance(thresholds, Mapping) else dict.fromkeys(rules, thresholds)
    for rule in by_rule.keys() - set(rules):
        raise BadOption(f"thresholds are given for a rule that is not swept, {did_you_mean(rule, rules)}")
    for wanted in by_rule.values():
        if isinstance(wanted, str) and wanted != "auto":
            raise BadOption(f'thresholds must be "auto", numbers, or numbers by rule; not {wanted!r}')
    return {rule: by_rule.get(rule, "auto") for rule in rules}


def policy_for(rule: str | Policy, trace: Trace) -> Policy:
    """The policy whose threshold is swept."""
    if not needs_labels(rule):
        return parse_rule(rule)
    if trace.labels is None:
        raise BadOption("the oracle needs labels and the trace has none; sweep other rules")
    return Policy(Oracle(best_exits(trace, metric_names(trace)[0])))


def thresholds_for(
    policy: Policy, wanted: str | Sequence[float], readiness: Array, trace: Trace, points: int
) -> Array:
    """The thresholds of one rule, each of which must work for the model of this trace."""
    if not policy.rule.takes_threshold:
        return np.zeros(1)
    if not isinstance(wanted, str):
        values = np.asarray(wanted, np.float64)
    elif policy.rule.reads == "layer":
        values = np.asarray(trace.layers)
    else:
        values = useful_thresholds(policy, readiness, trace.layers, points)
    for threshold in values.tolist():
        changed = replace(policy, threshold=threshold)
        changed.check(trace.layers, trace.problem, trace.gates is not None)
    return values


def mean_macs(trace: Trace, policy: Policy, table: ExitTable, padded_to: int | None) -> list[float] | None:
    """The mean MACs of an example at each threshold; None where the model's shape is unknown."""
    if not trace.shape:
        return None
    totals = table.total(lambda exit: macs_to_exit(trace, policy, exit, padded_to))
    return [float(total) / len(trace) for total in totals]


def measure_point(trace: Trace, policy: Policy, padded_to: int | None = None) -> Point:
    """A policy at its own threshold or thresholds, as it decides; without an interval."""
    decision = policy.decide_trace(trace)
    histogram = np.bincount(decision.exits, minlength=len(trace.layers))
    metrics = metric_names(trace)
    by_metric = score(trace, decision.logits)
    if AGREEMENT in metrics:
        agree = trace.by_text(trace.agrees(decision.logits), np.logical_and)
        by_metric[AGREEMENT] = float(agree.mean())
    spent = None
    if trace.shape:
        by_exit = [macs_to_exit(trace, policy, exit, padded_to) for exit in range(len(trace.layers))]
        spent = float(np.stack(by_exit)[decision.exits, np.arange(len(trace))].mean())
    return Point(
        threshold=None if isinstance(policy.threshold, tuple) else policy.threshold,
        scores=by_metric,
        cost=cost(histogram, trace.layers, spent),
        exits=tuple(histogram.tolist()),
    )


def macs_to_exit(trace: Trace, policy: Policy, exit: int, padded_to: int | None = None) -> Array:
    """(examples,) MACs up to a prediction at this exit, with every head that the policy evaluates on the way."""
    # static policies evaluate only the head of the exit that examples take
    static = policy.rule.reads in ("nothing", "layer")
    heads = 1 if static else exit + 1 - policy.skippable_exits(trace.layers)
    lengths = trace.lengths if padded_to is None else np.full(len(trace), padded_to)
    return macs(trace.shape, trace.logits.shape[-1], lengths, trace.layers[exit], heads)


def best_exits(trace: Trace, metric: str) -> Array:
    """(examples,) exits that score highest by a metric, and among those the earliest.

    No choice of exits beats them by accuracy or micro-F1, nor with two classes by F1, macro-F1 or Matthews'
    correlation. For macro-F1 of many labels, and for macro-F1 and Matthews' correlation of more than two classes,
    they are the best for micro-F1, which is close to the best but not a bound.
    """
    predictions = trace.problem.decode(trace.logits)  # (examples, exits) or (examples, exits, labels)
    labels = np.asarray(trace.labels)[:, None]
    usable = finite_rows(trace.logits)  # no rule exits where logits are not finite,
    usable[:, -1] = True  # except at the last exit
    if trace.problem.multi_label and metric != "acc":
        false_negatives, false_positives = (labels > predictions).sum(-1), (predictions > labels).sum(-1)
        return best_for_micro_f1(false_negatives, false_positives, usable, positives=int(labels.sum()))
    right = trace.problem.agree(predictions, labels)
    return np.asarray((right & usable).argmax(1))


def best_for_micro_f1(false_negatives: Array, false_positives: Array, usable: Array, positives: int) -> Array:
    """The exits of the highest micro-F1, by Dinkelbach's method. All arrays are (examples, exits).

    F1 >= f means 2 TP >= f (2 TP + FN + FP): for a given f, a sum over examples, each of which has its own best
    exit. The F1 of these exits is the next f, until it no longer grows.
    """
    examples, f1, best = np.arange(len(usable)), 0.0, -1.0
    while f1 > best:
        best = f1
        exits = np.where(usable, (2 - f1) * false_negatives + f1 * false_positives, np.inf).argmin(1)
        missed, extra = (errors[examples, exits].sum() for errors in (false_negatives, false_positives))
        hits = positives - missed
        f1 = 2 * hits / max(2 * hits + missed + extra, 1)
    return np.asarray(exits)
