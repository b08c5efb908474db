"""What a report says of one trace, as plain numbers that go to JSON and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offramp.criteria import CRITERIA
from offramp.curves import Sweep, sweep
from offramp.curves.curve import template
from offramp.curves.scores import at_full_depth, read_out
from offramp.problems import REGRESSION
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]

BINS = 30


@dataclass(frozen=True)
class Readiness:
    """How often answers of early exits were right and wrong, by what the rule saw (in its threshold's units)."""

    edges: tuple[float, ...]
    right: tuple[int, ...]
    wrong: tuple[int, ...]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{name: tuple(values) for name, values in fields.items()})


@dataclass(frozen=True)
class Section:
    """One trace, measured."""

    name: str
    sweep: Sweep
    readiness: Mapping[str, Readiness]
    """By rule, for rules that see more than a count."""
    classes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(
            name=fields["name"],
            sweep=Sweep.from_json(fields["sweep"]),
            readiness={rule: Readiness.from_json(each) for rule, each in fields["readiness"].items()},
            classes=tuple(fields["classes"]),
        )


def measure(name: str, trace: Trace, rules: Sequence[str], bootstrap: int, **options: Any) -> Section:
    found = sweep(trace, rules, bootstrap=bootstrap, **options)
    readiness = {rule: separation(trace, rule) for rule in rules if is_graded(rule)}
    shown = {rule: each for rule, each in readiness.items() if each is not None}
    return Section(name, found, shown, tuple(trace.label_names))


def is_graded(rule: str) -> bool:
    criterion = CRITERIA[rule.split(":")[0]]
    return not criterion.needs_labels and not criterion.counts_exits and criterion.takes_threshold


def separation(trace: Trace, rule: str) -> Readiness | None:
    """How well a rule tells right from wrong answers before the last exit; without labels, from full depth's."""
    if trace.problem_type == REGRESSION or len(trace.layers) == 1:
        return None
    policy = template(rule)
    read = read_out(trace, policy)
    right = read.answers[:-1] == (at_full_depth(trace) if trace.labels is None else trace.labels)
    right = (right.all(-1) if right.ndim == 3 else right).T
    seen = policy.criterion.sign * read.readiness[:, :-1]
    finite = np.isfinite(seen)
    if not finite.any():
        return None
    edges = np.histogram_bin_edges(seen[finite], BINS)
    return Readiness(
        edges=tuple(edges.tolist()),
        right=tuple(np.histogram(seen[finite & right], edges)[0].tolist()),
        wrong=tuple(np.histogram(seen[finite & ~right], edges)[0].tolist()),
    )
