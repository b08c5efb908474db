"""Layer: everybody leaves at one fixed layer, whatever the input."""

from dataclasses import dataclass
from typing import Any

from offramp.criteria.base import Array, Criterion


@dataclass(frozen=True)
class Layer(Criterion):
    """Leave at this layer, counted from 1: a shallower model, the baseline for every other rule.

    *Reference*: ElasticBERT's static models.
    *Relation*: the same as `never` with max_layer.
    *Shapes*: layer numbers (...) to readiness (...), the numbers themselves.
    *Example*:

    >>> import numpy as np
    >>> Layer().step(None, np.array([6, 6]))[1]
    array([6, 6])
    """

    reads = "layer"
    strict = False
    regression = True

    def step(self, state: Any, layer: Array) -> tuple[Any, Array]:
        return state, layer
