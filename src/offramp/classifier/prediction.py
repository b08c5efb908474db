"""Prediction: what a person gets to see of one text, made from the logits of a decision."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offramp.criteria.base import softmax
from offramp.policy import Decision
from offramp.problems import MULTI_LABEL, REGRESSION
from offramp.stages import Array, Stages


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer, and how deep the model went for it."""

    label: str | tuple[str, ...] | None
    """The most likely label; in a multi-label problem all that are above 0.5. None in a regression, and where
    the model gave NaN or infinity."""
    score: float
    """The label's probability; in a multi-label problem that of being right about the least certain label; in
    a regression the value."""
    probabilities: dict[str, float]
    """Of every label; empty in a regression."""
    layer: int
    """The layer whose exit answered, from 1."""
    layers: int
    """How many layers the model has."""
    finite: bool = True
    """False if an exit on the way gave NaN or infinity. Nobody leaves early because of that."""
    exits: tuple["Prediction", ...] = field(default=(), repr=False)
    """With `trace=True`, what every exit says."""


def predictions(decision: Decision, stages: Stages[Any]) -> Iterator[Prediction]:
    """A prediction for each example of a decision."""
    answers, names = decision.answers, stages.labels
    chances = probabilities(answers, stages.problem_type)
    labels: list[Any]
    if stages.problem_type == REGRESSION:
        labels, scores, names = [None] * len(answers), answers[:, 0], ()
    elif stages.problem_type == MULTI_LABEL:
        labels = [tuple(np.array(names)[row].tolist()) for row in chances > 0.5]
        scores = np.maximum(chances, 1 - chances).min(-1)
    else:
        labels = [names[index] for index in chances.argmax(-1)]
        scores = chances.max(-1)
    for row, known in enumerate(np.isfinite(answers.sum(-1))):
        yield Prediction(
            label=labels[row] if known else None,
            score=float(scores[row]) if known else float("nan"),
            probabilities=dict(zip(names, chances[row].tolist(), strict=True)),
            layer=stages.layers[decision.exits[row]],
            layers=stages.layers[-1],
            finite=bool(decision.finite[row]),
        )


def probabilities(answers: Array, problem_type: str) -> Array:
    """Logits (examples, labels) as probabilities; NaN where they are not finite, (examples, 0) in a regression.

    >>> probabilities(np.array([[0.0, 0.0], [1000.0, -1000.0]]), MULTI_LABEL)
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    if problem_type == REGRESSION:
        return answers[:, :0]
    if problem_type == MULTI_LABEL:
        return 0.5 * (1 + np.tanh(0.5 * answers.astype(np.float64)))
    return softmax(answers)
