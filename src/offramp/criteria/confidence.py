"""Confidence: leave when the top class is likely enough (Teerapittayanon et al. 2016, arXiv:1709.01686)."""

from dataclasses import dataclass
from typing import Any

from offramp.criteria.base import Criterion, softmax
from offramp.problems import Array


@dataclass(frozen=True)
class Confidence(Criterion):
    """Leave when the largest probability is above the threshold.

    *Reference*: the usual rule of the field since BranchyNet, which used entropy.
    *Relation*: `margin` subtracts the runner-up; for two classes confidence, margin and entropy rank alike.
    *Shapes*: logits (..., classes) to readiness (...), in (1 / classes, 1].
    *Example*:

    >>> import numpy as np
    >>> _, readiness = Confidence().step(None, np.log([[0.7, 0.2, 0.1]]))
    >>> readiness.round(4)
    array([0.7])
    """

    highest = 1.0

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        return state, softmax(logits).max(-1)
