"""Bounds by exit: policies with a threshold for each exit, found on other examples than those that test them.

Which examples take an exit depends on the thresholds of all exits before it. So the sequence of policies that is
tested is fixed before: they are found on the examples that a rule that learns is fitted on. Each policy opens the
exits one by one from the first, each as far as its examples stay within the bound, judged more and more boldly from
policy to policy. An exit stays closed if too few examples would take it to prove its bound, and examples that are
needed to prove the bound of the last exit are kept for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.guarantee import Guarantee
from offramp.guarantees.losses import LOSSES
from offramp.measuring.exit_table import unreachable_threshold
from offramp.measuring.losses import losses_on, reference_of
from offramp.measuring.targets import Candidate
from offramp.policy import Policy, fold
from offramp.problems import Array
from offramp.rules.base import Rule
from offramp.trace import Trace

CONFIDENCES = (0.999, 0.99, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""How sure the search is that an exit is within its bound and passes its test: a policy for each, safest first."""
SPARE = 1.3
"""This many times the examples needed are kept for the last exit, because their number varies with the sample."""


def policies_by_exit(
    candidate: Candidate, target: Guarantee, thresholds: Array, delta: float
) -> list[Policy]:
    """The policies to test at level delta, the safest first; without those that leave all exits closed."""
    trace, policy = candidate.fit_on, candidate.policy
    assert trace is not None
    folded = fold(policy.rule, trace.logits, trace.gates, trace.layers, trace.problem, trace.lists)
    reference = reference_of(trace, target.tolerance)
    every = np.ones(len(trace), bool)
    search = Search(
        policy,
        thresholds[np.argsort(policy.rule.level(thresholds), kind="stable")],
        delta,
        more=int(candidate.trace.unseen().sum()) / len(trace),
        tests_last=tests_last_exit(policy.rule, candidate.trace),
        layers=trace.layers,
        readiness=folded.readiness,
        losses=losses_on(trace, folded.logits, target.risks, target.tolerance),
        counted={
            risk: every if loss.among is None else loss.among(reference)
            for risk, loss in target.losses.items()
        },
        epsilon={risk: target.bounds_of(risk, [""])[""] for risk in target.risks},
    )
    policies = dict.fromkeys(map(search.find, CONFIDENCES))
    return [policy for policy in policies if open_exits(policy, trace.layers)]


def exits_tested(policy: Policy, trace: Trace, exits: Array) -> dict[str, Array]:
    """(examples,) the members of each exit that examples can take; of several, the last one is left out where it
    cannot lose anything, because the reference is what it predicts."""
    taken = np.unique(exits).tolist()
    if isinstance(policy.threshold, tuple):
        taken = open_exits(policy, trace.layers)
        if tests_last_exit(policy.rule, trace):
            taken.append(len(trace.layers) - 1)
    return {f"layer {trace.layers[exit]}": exits == exit for exit in taken}


def tests_last_exit(rule: Rule, trace: Trace) -> bool:
    """Whether the last exit may differ from the reference."""
    return trace.reference is not None or not rule.keeps_logits


def open_exits(policy: Policy, layers: Sequence[int]) -> list[int]:
    """The exits before the last that examples can take, of a policy with a threshold for each."""
    closed = unreachable_threshold(policy.rule)
    limits = (policy.min_layer or 0), policy.last_layer(layers)
    return [
        exit
        for exit, (layer, threshold) in enumerate(zip(layers, np.atleast_1d(policy.threshold), strict=True))
        if limits[0] <= layer < limits[1] and threshold != closed
    ]


@dataclass(frozen=True)
class Search:
    """What a policy is found on."""

    policy: Policy
    thresholds: Array
    """To choose from, the loosest first."""
    delta: float
    more: float
    """How many examples test a policy for each example here."""
    tests_last: bool
    layers: Sequence[int]
    readiness: Array
    """(examples, exits)"""
    losses: Mapping[str, Array]
    """By risk, (exits, examples)."""
    counted: Mapping[str, Array]
    """By risk, (examples,) which of them count."""
    epsilon: Mapping[str, float]

    def find(self, confidence: float) -> Policy:
        rule = self.policy.rule
        chosen = [unreachable_threshold(rule)] * len(self.layers)
        left = np.ones(len(self.readiness), bool)
        last_layer = self.policy.last_layer(self.layers)
        levels = rule.level(self.thresholds)
        for exit, layer in enumerate(self.layers):
            if not (self.policy.min_layer or 0) <= layer < last_layer:
                continue
            # how many of the levels each example reaches
            passed = np.searchsorted(
                levels, self.readiness[:, exit], "right" if rule.counts_exits else "left"
            )
            good = np.flatnonzero(self.is_provable(exit, left, passed, confidence))
            if len(good):
                chosen[exit] = float(self.thresholds[good[0]])
                left &= passed <= good[0]
        return replace(self.policy, threshold=tuple(chosen))

    def is_provable(self, exit: int, left: Array, passed: Array, confidence: float) -> Array:
        """(thresholds,) whether the bounds can be expected to be proven for those who exit."""
        from scipy.special import betainc, betaincinv, ndtri

        good = np.ones(len(self.thresholds), bool)
        for risk, counted in self.counted.items():
            rows = left & counted
            taken = self.totals(passed[rows])
            lost = self.totals(passed[rows], self.losses[risk][exit, rows]).clip(0, taken)
            with np.errstate(invalid="ignore"):
                highest = betaincinv(lost + 1, np.maximum(taken - lost, 1e-9), confidence)
            expected = taken * self.more * highest
            # the number of losses in the test varies too
            errors = expected + max(float(ndtri(confidence)), 0.0) * np.sqrt(expected)
            others = np.maximum(taken * self.more - errors, 1e-9)
            p_values = betainc(others, errors + 1, 1 - self.epsilon[risk])
            good &= (p_values <= self.delta) & (taken > 0)
            if self.tests_last:
                needed = BOUNDS[LOSSES[risk].bound].examples_needed([0.0], self.epsilon[risk], self.delta)
                good &= (rows.sum() - taken) * self.more >= SPARE * (needed or np.inf)
        return good

    def totals(self, passed: Array, values: Array | None = None) -> Array:
        """(thresholds,) the number of examples that exit at each threshold, or the sum of their values."""
        sums = np.bincount(passed, values, len(self.thresholds) + 1)
        return np.asarray(sums[::-1].cumsum()[::-1][1:], np.float64)
