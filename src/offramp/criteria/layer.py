"""Layer: every example leaves at one fixed layer, whatever the input."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offramp.criteria.base import Criterion
from offramp.problems import Array


@dataclass(frozen=True)
class Layer(Criterion):
    """Leave at this layer: a shallower model, the baseline for every other rule.

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
        return np.asarray(threshold, np.float64)

    def step(self, state: Any, layer: Array) -> tuple[Any, Array]:
        return state, layer
