"""Minimum probability: leave when some class is ruled out (ELBERT, Xie et al. 2021, arXiv:2107.00175)."""

from dataclasses import dataclass
from typing import Any

from offramp.criteria.base import Criterion, softmax
from offramp.problems import Array


@dataclass(frozen=True)
class MinProbability(Criterion):
    """Leave when the smallest probability is below the threshold.

    *Reference*: ELBERT's `thres_name: logits`.
    *Relation*: for two classes the same as `confidence` at 1 - threshold; with more classes it means little.
    *Shapes*: logits (..., classes) to readiness (...), the negative of the smallest probability.
    *Example*:

    >>> import numpy as np
    >>> _, readiness = MinProbability().step(None, np.log([[0.7, 0.2, 0.1]]))
    >>> readiness.round(4)
    array([-0.1])
    """

    sign = -1
    highest = 0.0

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        return state, -softmax(logits).min(-1)
