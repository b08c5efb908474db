"""A rule over exits: one exit at a time (`advance`), or all of them before any threshold (`fold`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import Incompatible
from offramp.numerics import finite_rows
from offramp.problems import Array, Problem, problem_of
from offramp.rules import RULES
from offramp.rules.base import Rule
from offramp.wording import count


@dataclass(frozen=True)
class Folded:
    """A rule folded over all exits."""

    readiness: Array
    """(examples, exits), minus infinity where an input was not finite; for multi-label, the least ready label."""
    logits: Array
    """(examples, exits, classes): the exits' own, except for `ensemble`."""


def fold(
    rule: Rule,
    logits: ArrayLike,
    gates: ArrayLike | None = None,
    layers: Sequence[int] | None = None,
    problem_type: str | None = None,
) -> Folded:
    """One pass of a rule over all exits, for sweeping thresholds; arguments as for `Policy.decide`.

    A threshold lets an example leave at the first exit where `reached(rule, folded.readiness, threshold)`.
    """
    every = Exits(logits, gates, layers)
    examples, exits, outputs = every.logits.shape
    problem = problem_of(outputs, problem_type)
    rule.check(exits)
    own_logits = type(rule).output is Rule.output
    folded = Folded(
        readiness=np.empty((examples, exits)),
        logits=every.logits if own_logits else np.empty_like(every.logits),
    )
    state = None
    for exit, layer in enumerate(every.layers):
        seen = advance(rule, state, *every.at(exit), layer, problem)
        state = seen.state
        folded.readiness[:, exit] = seen.readiness.min(-1)
        if not own_logits:
            folded.logits[:, exit] = seen.logits
    return folded


def reached(rule: Rule, readiness: Array, threshold: ArrayLike) -> Array:
    """Where readiness reaches a threshold given in the rule's own units: the one comparison.

    `readiness >= level` for rules that count exits and `readiness > level` for the others, where
    `level = rule.level(threshold)`: `sign * threshold`, with sign -1 for entropy and min_probability,
    and infinity where a count is 0. Conversely a readiness r lies on the border of threshold `sign * r`.

    >>> reached(RULES["entropy"](), np.array([-0.2, -0.3, -0.4]), 0.3)
    array([ True, False, False])
    >>> reached(RULES["patience"](), np.array([1, 2, 3]), 2)
    array([False,  True,  True])
    """
    level = rule.level(threshold)
    where: Array = readiness >= level if rule.counts_exits else readiness > level
    return where


class Exits:
    """Logits, gates and layers of all exits, with matching shapes."""

    def __init__(self, logits: ArrayLike, gates: ArrayLike | None, layers: Sequence[int] | None) -> None:
        self.logits = np.asarray(logits)
        if self.logits.ndim != 3 or 0 in self.logits.shape[1:]:
            raise Incompatible(
                f"logits must be (examples, exits, classes), not of shape {self.logits.shape}."
            )
        if not np.issubdtype(self.logits.dtype, np.floating):
            self.logits = self.logits.astype(np.float64)
        shape = self.logits.shape[:2]
        self.gates = None if gates is None else np.asarray(gates)
        if self.gates is not None and self.gates.shape != shape:
            raise Incompatible(f"gates of shape {self.gates.shape} do not fit (examples, exits) = {shape}.")
        self.layers = tuple(range(1, shape[1] + 1) if layers is None else layers)
        if len(self.layers) != shape[1]:
            raise Incompatible(
                f"{count(len(self.layers), 'layer')} given for logits of {count(shape[1], 'exit')}."
            )

    def at(self, exit: int, rows: Any = slice(None)) -> tuple[Array, Array | None]:
        """Logits and gate scores of some rows at one exit."""
        return self.logits[rows, exit], None if self.gates is None else self.gates[rows, exit]


@dataclass(frozen=True)
class Step:
    """The result of stepping a rule over one exit."""

    state: Any
    readiness: Array  # (examples, labels), or (examples, 1) where there is one decision per example
    logits: Array  # (examples, classes)
    finite: Array  # (examples,)


def advance(rule: Rule, state: Any, logits: Array, gate: Array | None, layer: int, problem: Problem) -> Step:
    """Step a rule over one exit; the state is None at the first. Non-finite rows are never ready."""
    if state is None:
        check_rule(rule, logits.shape[-1], problem, gate is not None)
    finite = finite_rows(logits)
    choices = problem.choices(logits)
    if rule.reads == "gate":
        read = np.asarray(gate)[:, None]
        finite &= np.isfinite(read[:, 0])
    elif rule.reads == "layer":
        read = np.full((len(logits), 1), layer)
    else:
        read = choices
    if state is None:
        state = rule.start(read.shape[:2])
    state, ready = rule.step(state, read)
    output = problem.chosen(rule.output(state, choices))
    return Step(state, np.where(finite[:, None], ready, -np.inf), output, finite)


def check_rule(rule: Rule, outputs: int, problem: Problem, has_gate: bool) -> None:
    """Refuse a rule that cannot decide for such a model."""
    if not problem.has_classes and outputs > 1:
        raise Incompatible(f"no rule works for {outputs} real-valued outputs; train one model per output.")
    if not problem.has_classes and not rule.regression:
        able = ", ".join(name for name, kind in RULES.items() if kind.regression)
        raise Incompatible(
            f"{type(rule).__name__} compares classes, and this model predicts a number. "
            f"Use a rule for regression ({able}), for example patience:3,tolerance=0.1."
        )
    if rule.reads == "gate" and not has_gate:
        raise Incompatible(
            "the gate rule reads gate scores, and this model has no gate: train one with the recipe berxit."
        )
