"""Oracle: leave at the exit that is best for the example, chosen with knowledge of its label.

It shows how good a rule could be, and never runs. `offramp.curves.best_exits` chooses the exits.
"""

from dataclasses import dataclass

import numpy as np

from offramp.criteria.base import Criterion, PerExample, Shape
from offramp.errors import Incompatible
from offramp.problems import Array


@dataclass(frozen=True)
class Ahead(PerExample):
    exits: Array  # (...) exits still to pass


@dataclass(frozen=True, eq=False)
class Oracle(Criterion):
    """Leave at the exit that was chosen in advance for each example.

    *Reference*: the upper bound of early-exit papers, "overthinking" (Kaya et al. 2019, arXiv:1810.07052).
    *Relation*: what `gate` tries to learn.
    *Shapes*: exits (examples,), counted from 0; readiness (...), 1 from the chosen exit on and 0 before it.
    *Example*:

    >>> rule = Oracle(exits=np.array([0, 1]))
    >>> rule.step(rule.start(2), np.array([[2.0, 1.0], [2.0, 1.0]]))[1]
    array([1., 0.])
    """

    exits: Array

    takes_threshold = False
    needs_labels = True

    def start(self, examples: Shape) -> Ahead:
        shape = (examples,) if isinstance(examples, int) else examples
        if self.exits.shape != shape[:1]:
            raise Incompatible(f"the oracle has exits of shape {self.exits.shape} for {shape[0]} examples.")
        exits = self.exits.reshape(-1, *[1] * (len(shape) - 1))
        return Ahead(np.broadcast_to(exits, shape))

    def step(self, ahead: Ahead, logits: Array) -> tuple[Ahead, Array]:
        return Ahead(ahead.exits - 1), (ahead.exits <= 0).astype(np.float64)
