"""Never: every example leaves at the last exit, as in the plain model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.criteria.base import Criterion
from offramp.problems import Array


@dataclass(frozen=True)
class Never(Criterion):
    """Leave at the last exit only.

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
        return state, np.full(logits.shape[:-1], -np.inf)
