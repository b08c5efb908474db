"""One trace, measured: the numbers of a section of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.curves import Sweep, sweep
from offramp.curves.curve import parse_rule
from offramp.curves.scores import apply_rule
from offramp.policy.text import rule_class
from offramp.problems import REGRESSION
from offramp.trace import Trace

BINS = 30


@dataclass(frozen=True)
class Readiness:
    """Histograms of what a rule measures at early exits, for right and for wrong predictions."""

    edges: tuple[float, ...]
    """Of the bins, in the units of the rule's threshold."""
    right: tuple[int, ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True)
class Section:
    name: str
    sweep: Sweep
    readiness: Mapping[str, Readiness]
    """By rule, without rules that count exits or take no threshold."""
    classes: tuple[str, ...] = ()


def measure_section(name: str, trace: Trace, rules: Sequence[str], bootstrap: int, **options: Any) -> Section:
    found = sweep(trace, rules, bootstrap=bootstrap, **options)  # first, because it checks the rules
    seed = options.get("seed", 0)
    readiness = {rule: measure_readiness(trace, rule, seed) for rule in rules if is_graded(rule)}
    return Section(
        name,
        found,
        {rule: each for rule, each in readiness.items() if each is not None},
        tuple(trace.label_names),
    )


def is_graded(rule: str) -> bool:
    kind = rule_class(rule)
    return kind is not None and kind.takes_threshold and not kind.counts_exits


def measure_readiness(trace: Trace, rule: str, seed: int) -> Readiness | None:
    """Without labels, a prediction is right if full depth gives the same; None where there is nothing to count."""
    if trace.problem_type == REGRESSION or len(trace.layers) == 1:
        return None
    policy = parse_rule(rule)
    output = apply_rule(trace, policy, seed)
    truth = trace.reference_predictions() if trace.labels is None else trace.labels
    right = output.predictions[:-1] == truth
    right = (right.all(-1) if right.ndim == 3 else right).T
    values = policy.criterion.sign * output.readiness[:, :-1]
    finite = np.isfinite(values)
    if not finite.any():
        return None
    edges = np.histogram_bin_edges(values[finite], BINS)
    return Readiness(
        edges=tuple(edges.tolist()),
        right=tuple(np.histogram(values[finite & right], edges)[0].tolist()),
        wrong=tuple(np.histogram(values[finite & ~right], edges)[0].tolist()),
    )
