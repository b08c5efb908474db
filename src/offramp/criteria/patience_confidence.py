"""Patience with confidence: several consecutive exits are confident of the same class (PCEE-BERT)."""

from dataclasses import dataclass, field

import numpy as np

from offramp.criteria.base import ALWAYS_WRITTEN, COUNT, Criterion, PerExample, Shape, softmax
from offramp.errors import BadPolicy
from offramp.problems import Array


@dataclass(frozen=True)
class ConfidentRun(PerExample):
    prediction: Array  # (...) class at the previous exit, -1 for none
    run: Array  # (...) consecutive exits that were confident of it


@dataclass(frozen=True)
class PatienceConfidence(Criterion):
    """Leave when this many consecutive exits, this one included, predicted the same class with enough confidence.

    *Reference*: PCEE-BERT, Zhang et al. 2022, Findings of NAACL, "Patient and Confident Early Exiting".
    *Relation*: with a threshold of 1 it is `confidence`; `patience` counts agreements, so one exit less.
    *Shapes*: logits (..., classes) to readiness (...), the run of confident exits.
    *Example*:

    >>> rule = PatienceConfidence(confidence=0.8)
    >>> state = rule.start(1)
    >>> for logits in ([[2.0, 0.0]], [[3.0, 0.0]], [[1.0, 0.0]]):
    ...     state, readiness = rule.step(state, np.array(logits))
    ...     print(readiness)
    [1]
    [2]
    [0]
    """

    confidence: float = field(default=0.9, metadata=ALWAYS_WRITTEN)
    """The lower bound on the largest probability, at every exit of the run."""

    counts_exits = True
    highest = COUNT

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise BadPolicy(f"confidence={self.confidence} must be at least 0 and below 1: a probability.")

    def start(self, examples: Shape) -> ConfidentRun:
        return ConfidentRun(prediction=np.full(examples, -1), run=np.zeros(examples, int))

    def step(self, seen: ConfidentRun, logits: Array) -> tuple[ConfidentRun, Array]:
        probabilities = softmax(logits)
        prediction = probabilities.argmax(-1)
        confident = probabilities.max(-1) > self.confidence
        run = np.where(confident & (prediction == seen.prediction), seen.run + 1, confident.astype(int))
        return ConfidentRun(prediction, run), run
