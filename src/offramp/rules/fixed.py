"""Rules that do not read logits: a fixed layer, full depth, the model's own gates, and the oracle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import Incompatible
from offramp.problems import Array
from offramp.rules.base import PerExample, Rule, Shape


@dataclass(frozen=True)
class Layer(Rule):
    """Exit at this layer: a shallower model, the baseline for every other rule.

    *Reference*: ElasticBERT's static models.
    *Relation*: the same as `never` with max_layer.
    *Shapes*: layer numbers (...) to readiness (...), the numbers themselves.
    *Example*:

    >>> Layer().step(None, np.array([6, 6]))[1]
    array([6, 6])
    """

    reads = "layer"
    counts_exits = True
    regression = True

    def level(self, threshold: ArrayLike) -> Array:
        """A layer number stands for itself: 0 is the exit before the first layer."""
        level: Array = np.multiply(threshold, 1.0)
        return level

    def step(self, state: Any, layer: Array) -> tuple[Any, Array]:
        return state, layer


@dataclass(frozen=True)
class Never(Rule):
    """Take the last exit only.

    *Relation*: `layer` at the last layer.
    *Shapes*: logits (..., classes) to readiness (...), minus infinity.
    *Example*:

    >>> Never().step(None, np.array([[9.0, 0.0]]))[1]
    array([-inf])
    """

    reads = "nothing"
    takes_threshold = False
    regression = True

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        return state, np.full_like(logits[..., 0], -np.inf)


@dataclass(frozen=True)
class Gate(Rule):
    """Exit when the exit's gate score is above the threshold.

    *Reference*: BERxiT, Xin et al. 2021, EACL, "learning to exit".
    *Relation*: like `patience` and `agreement`, it also works for regression; unlike them, it is part of the model.
    *Shapes*: gate scores (...) to readiness (...), the scores themselves.
    *Example*:

    >>> import numpy as np
    >>> Gate().step(None, np.array([0.2, 0.9]))[1]
    array([0.2, 0.9])
    """

    reads = "gate"
    highest = 1.0
    probability = True
    regression = True

    def step(self, state: Any, gate: Array) -> tuple[Any, Array]:
        return state, gate


@dataclass(frozen=True)
class Ahead(PerExample):
    exits: Array  # (...) exits still to pass


@dataclass(frozen=True, eq=False)
class Oracle(Rule):
    """Take the exit that was chosen in advance for each example.

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
