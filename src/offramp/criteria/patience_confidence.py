"""Patience and confidence together: several exits in a row are sure of the same answer (PCEE-BERT)."""

from dataclasses import dataclass, field

import numpy as np

from offramp.criteria.base import ALWAYS_WRITTEN, Array, Criterion, Rows, Shape, softmax
from offramp.errors import BadPolicy


@dataclass(frozen=True)
class SureRun(Rows):
    answer: Array  # (...) class at the exit before, -1 for none
    run: Array  # (...) exits in a row that were sure of it


@dataclass(frozen=True)
class PatienceConfidence(Criterion):
    """Leave when this many exits in a row, this one included, gave the same answer with enough confidence.

    *Reference*: PCEE-BERT, Zhang et al. 2022, Findings of NAACL, "Patient and Confident Early Exiting".
    *Relation*: with a threshold of 1 it is `confidence`; `patience` counts agreements, so one exit less.
    *Shapes*: logits (..., classes) to readiness (...), the run of sure exits.
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
    """What the largest probability must be above, at every exit of the run."""

    strict = False

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise BadPolicy(f"confidence={self.confidence} must be at least 0 and below 1: a probability.")

    def start(self, examples: Shape) -> SureRun:
        return SureRun(answer=np.full(examples, -1), run=np.zeros(examples, int))

    def step(self, seen: SureRun, logits: Array) -> tuple[SureRun, Array]:
        chances = softmax(logits)
        answer = chances.argmax(-1)
        sure = chances.max(-1) > self.confidence
        run = np.where(sure & (answer == seen.answer), seen.run + 1, sure.astype(int))
        return SureRun(answer, run), run
