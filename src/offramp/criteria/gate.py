"""Gate: leave when a small learned head predicts that the exit is right (BERxiT, Xin et al. 2021)."""

from dataclasses import dataclass
from typing import Any

from offramp.criteria.base import Criterion
from offramp.problems import Array


@dataclass(frozen=True)
class Gate(Criterion):
    """Leave when the exit's gate score is above the threshold.

    *Reference*: BERxiT, Xin et al. 2021, EACL, "learning to exit".
    *Relation*: like `patience` and `agreement`, it also works for regression; unlike them, it is part of the model.
    *Shapes*: gate scores (...) to readiness (...), the scores themselves.
    *Example*:

    >>> import numpy as np
    >>> Gate().step(None, np.array([0.2, 0.9]))[1]
    array([0.2, 0.9])
    """

    highest = 1.0

    reads = "gate"
    probability = True
    regression = True

    def step(self, state: Any, gate: Array) -> tuple[Any, Array]:
        return state, gate
