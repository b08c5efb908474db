"""Decider: a policy at work on examples, exit by exit; or a rule over all exits, before any threshold (`fold`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import Incompatible
from offramp.guarantees.operating_point import Decisions
from offramp.lists import Lists
from offramp.numerics import finite_rows
from offramp.problems import Array, Problem, problem_of
from offramp.rules import RULES
from offramp.rules.agreement import Agreement
from offramp.rules.base import Rule
from offramp.rules.rank import Rank
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.policy.policy import Policy


@dataclass(frozen=True)
class Decision:
    """The outcome for each example."""

    exits: Array
    """(examples,) index of the exit taken."""
    logits: Array
    """(examples, classes) the logits returned; where tokens are tagged, those of all tokens, in order."""
    finite: Array
    """(examples,) False where an exit on the way gave NaN or infinity."""


class Decider:
    """Applies a policy to examples, exit by exit; one row per example or document.

    After `exiting, output = decider.step(exit, logits, gate)` continue with `decider = decider[~exiting]`. Where
    tokens are tagged, logits and gates have a row for each token of all examples. A text exits when its least ready
    token, of those that count, is ready (SENTEE: Li et al. 2021, arXiv:2105.13878).
    """

    def __init__(
        self,
        policy: "Policy",
        layers: tuple[int, ...],
        problem: Problem,
        finite: Array,
        lists: Lists | None = None,
        state: Any = None,
    ) -> None:
        self.policy = policy
        self.layers = layers
        self.problem = problem
        self.finite = finite  # (examples,) False where an exit so far gave NaN or infinity
        self.lists = lists  # of tokens; of documents, before the first exit
        self.state = state  # of the rule, None before the first exit

    def step(self, exit: int, logits: ArrayLike, gate: ArrayLike | None = None) -> tuple[Array, Array]:
        """(examples,) which exit here, and (examples, classes) the logits each would return here.

        `logits` (examples, classes) and `gate` (examples,) are this exit's. Only the policy's skippable exits
        may be left out.
        """
        policy, layer = self.policy, self.layers[exit]
        logits = np.asarray(logits)
        gate = None if gate is None else np.asarray(gate)
        seen = advance(policy.rule, self.state, exit, logits, gate, layer, self.problem, self.lists)
        self.state = seen.state
        readiness, finite = of_examples(seen, self.problem, self.lists)
        self.finite = self.finite & finite
        if layer >= policy.last_layer(self.layers):
            exiting = np.ones(len(finite), bool)
        elif layer < (policy.min_layer or 0):
            exiting = np.zeros(len(finite), bool)
        else:
            threshold = policy.threshold[exit] if isinstance(policy.threshold, tuple) else policy.threshold
            exiting = np.asarray(reached(policy.rule, readiness, threshold).all(-1))
        return exiting, seen.logits

    def __getitem__(self, rows: Any) -> "Decider":
        parts, lists = rows, self.lists
        if self.problem.of_tokens:
            assert lists is not None  # see `Policy.begin`
            parts = rows[lists.numbers]
        state = None if self.state is None else self.state[parts]
        if lists is not None:
            lists = lists[parts] if self.problem.of_tokens or state is None else None
        return Decider(self.policy, self.layers, self.problem, self.finite[rows], lists, state)


def replay(decider: Decider, every: "Exits") -> Decision:
    """The decisions over logits that are all known."""
    parts, exits, classes = every.logits.shape
    tokens = decider.lists if decider.problem.of_tokens else None
    examples = len(decider.finite)
    decision = Decision(
        exits=np.empty(examples, np.int64),
        logits=np.empty((parts, classes), every.logits.dtype),
        finite=np.empty(examples, bool),
    )
    waiting = np.arange(examples)
    for exit in range(exits):
        rows = waiting if tokens is None else tokens.rows(waiting)
        exiting, output = decider.step(exit, *every.at(exit, rows))
        gone = waiting[exiting]
        decision.exits[gone] = exit
        decision.logits[rows] = output  # of those that stay, replaced at a later exit
        decision.finite[gone] = decider.finite[exiting]
        waiting, decider = waiting[~exiting], decider[~exiting]
        if not len(waiting):
            break
    return decision


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
    lists: Lists | None = None,
) -> Folded:
    """One pass of a rule over all exits, for sweeping thresholds; arguments as for `Policy.decide`, with `lists` only
    for tokens.

    At a threshold an example takes the first exit where `reached(rule, folded.readiness, threshold)`.
    """
    every = Exits(logits, gates, layers)
    examples, exits, outputs = every.logits.shape
    problem = problem_of(outputs, problem_type)
    if problem.of_tokens:
        examples = len(tokens_of(lists).sizes)
    rule.check(exits)
    folded = Folded(
        readiness=np.empty((examples, exits)),
        logits=every.logits if rule.keeps_logits else np.empty_like(every.logits),
    )
    state = None
    for exit, layer in enumerate(every.layers):
        seen = advance(rule, state, exit, *every.at(exit), layer, problem, lists)
        state = seen.state
        folded.readiness[:, exit] = of_examples(seen, problem, lists)[0].min(-1)
        if not rule.keeps_logits:
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
    finite: Array  # (examples,); where tokens are tagged, all have a row for each token


def advance(
    rule: Rule,
    state: Any,
    exit: int,
    logits: Array,
    gate: Array | None,
    layer: int,
    problem: Problem,
    lists: Any = None,
) -> Step:
    """Step a rule over one exit; the state is None at the first. Non-finite rows are never ready.

    `lists` are `Lists`, or their counterpart in a graph.
    """
    if state is None:
        check_rule(rule, logits.shape[-1], problem, gate is not None)
    finite = finite_rows(logits)
    choices = problem.choices(logits)
    if rule.reads == "gate":
        assert gate is not None  # see `check_rule`
        read = gate[:, None]
        finite &= np.isfinite(read[:, 0])
    elif rule.reads == "layer":
        read = np.full_like(choices[..., 0], layer)
    else:
        read = choices
    if state is None:
        state = first_state(rule, read.shape[:2], problem, lists, exit)
    state, ready = rule.step(state, read)
    output = logits if rule.keeps_logits else problem.chosen(rule.output(state, choices))
    return Step(state, np.where(finite[:, None], ready, -np.inf), output, finite)


def first_state(
    rule: Rule, shape: tuple[int, ...], problem: Problem, lists: Any = None, exit: int = 0
) -> Any:
    """The state of a rule before an exit of so many examples and choices."""
    if isinstance(rule, Rank):
        return rule.start(lists or shape[0], exit)
    if problem.of_tokens and isinstance(rule, Agreement):
        return rule.start(tokens_of(lists))
    return rule.start(shape)


def of_examples(seen: Step, problem: Problem, lists: Any) -> tuple[Array, Array]:
    """Readiness (examples, ...), and whether all logits were finite (examples,). Where tokens are tagged, a text is
    as ready as the least ready of its tokens that count, and never ready if a logit is not finite."""
    if not problem.of_tokens:
        return seen.readiness, seen.finite
    wrong = tokens_of(lists).total(~seen.finite, counted=False) > 0
    return np.where(wrong[:, None], -np.inf, lists.least(seen.readiness)), ~wrong


def tokens_of(lists: Any) -> Any:
    if lists is None:
        raise Incompatible(
            "tokens are tagged; pass the number of tokens of each text: lists=Lists.consecutive(sizes)."
        )
    return lists


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
    if isinstance(problem, Decisions) and not rule.keeps_logits:
        raise Incompatible(
            f"{type(rule).__name__} changes the logits of an exit, so it does not work with an operating point."
        )
    if isinstance(rule, Rank):
        check_reranker(outputs, problem)
    if problem.of_tokens and rule.needs_labels:
        raise Incompatible("the oracle is for single texts; measure other rules on tags.")
    if rule.reads == "gate" and not has_gate:
        raise Incompatible(
            "the gate rule reads gate scores, and this model has no gate: train one with the recipe berxit."
        )


def check_reranker(outputs: int, problem: Problem) -> None:
    """Refuse a model whose outputs are not the relevance of a document."""
    if problem.of_tokens:
        raise Incompatible("the model tags tokens; use Tagger, or `offramp predict`.")
    if outputs > (1 if problem.multi_label else 2):
        raise Incompatible(
            f"the model has {outputs} labels; reranking needs one output, or two classes of which one is right."
        )
