"""Margin: leave when the top class is far ahead of the second."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.criteria.base import Criterion, softmax
from offramp.problems import Array


@dataclass(frozen=True)
class Margin(Criterion):
    """Leave when the largest probability is ahead of the second largest by more than the threshold.

    *Reference*: margin sampling (Scheffer et al. 2001), used as a measure of certainty.
    *Relation*: `confidence` stays low when many classes share the rest; margin compares the best two only.
    *Shapes*: logits (..., classes) to readiness (...), in [0, 1].
    *Example*:

    >>> _, readiness = Margin().step(None, np.log([[0.7, 0.2, 0.1]]))
    >>> readiness.round(4)
    array([0.5])
    """

    highest = 1.0

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        top_two = np.partition(softmax(logits), -2, axis=-1)[..., -2:]
        return state, top_two[..., 1] - top_two[..., 0]
