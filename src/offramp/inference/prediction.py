"""Prediction: what a user gets for one text, made from the logits of a decision."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offramp.guarantees.operating_point import Decisions
from offramp.inference.runner import Runner
from offramp.policy import Decision, Policy, fold
from offramp.problems import Array
from offramp.runtimes import Runtime, Tokens


@dataclass(frozen=True, slots=True)
class Prediction:
    """The label of one text, and the layer that predicted it."""

    label: str | tuple[str, ...] | None
    """The most likely label; in a multi-label problem, all labels above 0.5. None in a regression, and if the
    logits are not finite."""
    score: float
    """The label's probability; in a multi-label problem, the probability of being right about the least certain
    label; in a regression, the value."""
    probabilities: dict[str, float]
    """The probability of every label; empty in a regression."""
    layer: int
    """The layer of the exit taken; layer 0 is the embeddings."""
    layers: int
    """The number of layers in the model."""
    finite: bool = True
    """False if any exit before this one produced NaN or infinity; such an exit is never taken early."""
    exits: tuple["Prediction", ...] = field(default=(), repr=False)
    """With `every_exit=True`, the prediction of every exit."""
    logits: tuple[float, ...] = field(default=(), repr=False)
    """One for every label, in the model's order; in a regression, the value alone."""
    decision: str | tuple[str, ...] | bool | None = None
    """At the model's operating point: yes or no; with several thresholds, the labels that reach theirs. Without one,
    the label."""


def predict_tokens(
    runner: Runner,
    tokens: list[Tokens],
    policy: Policy,
    deadline: float | Array = math.inf,
    every_exit: bool = False,
) -> Iterator[Prediction]:
    """A prediction for each example; `policy` is resolved, and `deadline` is as in `Engine.run`."""
    if every_exit:
        return predict_every_exit(runner, tokens, policy)
    return predictions(runner.engine.run(tokens, policy, deadline), runner.runtime)


def predict_every_exit(runner: Runner, tokens: list[Tokens], policy: Policy) -> Iterator[Prediction]:
    logits, gates = runner.engine.trace(tokens)
    model = gates, runner.runtime.info.exits, runner.runtime.info.decisions
    folded = fold(policy.rule, logits, *model).logits
    finite = np.isfinite(logits.sum(-1))
    every_exit = [
        predictions(Decision(np.full(len(tokens), exit), folded[:, exit], finite[:, exit]), runner.runtime)
        for exit in range(logits.shape[1])
    ]
    taken = predictions(policy.decide(logits, *model), runner.runtime)
    for prediction, *exits in zip(taken, *every_exit, strict=True):
        yield replace(prediction, exits=tuple(exits))


def predictions(decision: Decision, runtime: Runtime[Any]) -> Iterator[Prediction]:
    """A prediction for each example of a decision."""
    logits, problem = decision.logits, runtime.info.problem
    chances = problem.probabilities(logits)
    labels, scores = problem.named(logits, chances, runtime.info.labels)
    decisions = runtime.info.decisions
    decided = decisions.named_decisions(logits) if isinstance(decisions, Decisions) else labels
    names = runtime.info.labels[: chances.shape[-1]]
    for row, finite in enumerate(np.isfinite(logits.sum(-1))):
        yield Prediction(
            label=labels[row] if finite else None,
            score=float(scores[row]) if finite else float("nan"),
            probabilities=dict(zip(names, chances[row].tolist(), strict=True)),
            layer=runtime.info.exits[decision.exits[row]],
            layers=runtime.info.exits[-1],
            finite=bool(decision.finite[row]),
            logits=tuple(logits[row].tolist()),
            decision=decided[row] if finite else None,
        )
