"""Oracle: leave as soon as the prediction is right. It needs labels, so it bounds curves and never runs."""

from dataclasses import dataclass

import numpy as np

from offramp.criteria.base import Criterion, PerExample, Shape
from offramp.errors import Incompatible
from offramp.problems import Array


@dataclass(frozen=True)
class Truth(PerExample):
    labels: Array  # (...)


@dataclass(frozen=True, eq=False)
class Oracle(Criterion):
    """Leave at the first exit whose prediction is the label; examples that no exit gets right leave at the last.

    *Reference*: the upper bound of early-exit papers, "overthinking" (Kaya et al. 2019, arXiv:1810.07052).
    *Relation*: what `gate` tries to learn.
    *Shapes*: labels (examples,), or 0/1 (examples, labels); readiness (...), 1 where right and 0 elsewhere.
    *Example*:

    >>> rule = Oracle(labels=np.array([0, 1]))
    >>> rule.step(rule.start(2), np.array([[2.0, 1.0], [2.0, 1.0]]))[1]
    array([1., 0.])
    """

    labels: Array

    takes_threshold = False
    needs_labels = True

    def start(self, examples: Shape) -> Truth:
        if self.labels.size != np.prod(examples):
            raise Incompatible(f"the oracle has labels of shape {self.labels.shape} for {examples} answers.")
        return Truth(self.labels.reshape(examples))

    def step(self, truth: Truth, logits: Array) -> tuple[Truth, Array]:
        return truth, (logits.argmax(-1) == truth.labels).astype(np.float64)
