"""Patience: leave when consecutive exits agree (Zhou et al. 2020, arXiv:2006.04152).

Like `window`, but counts equal predictions and ignores probabilities.
"""

from dataclasses import dataclass

import numpy as np

from offramp.criteria.base import COUNT, Criterion, PerExample, Shape, finite_rows
from offramp.problems import Array


@dataclass(frozen=True)
class Streak(PerExample):
    prediction: Array  # (...) class or value at the previous exit, NaN for none: NaN agrees with nothing
    run: Array  # (...) consecutive agreements


@dataclass(frozen=True)
class Patience(Criterion):
    """Leave when this many consecutive exits agreed with the one before.

    *Reference*: PABEE. The first exit agrees with nothing, so patience t leaves at the (t + 1)-th exit at the
    earliest, and 0 means never.
    *Relation*: for two classes a `window` of t + 1 with shape=side, entropy=0 and margin=0 decides the same.
    *Shapes*: logits (..., classes), or (..., 1) in regression, to readiness (...), the run of agreements.
    *Example*:

    >>> rule = Patience()
    >>> state = rule.start(1)
    >>> for logits in ([[2.0, 1.0]], [[3.0, 1.0]], [[0.0, 1.0]]):
    ...     state, readiness = rule.step(state, np.array(logits))
    ...     print(readiness)
    [0]
    [1]
    [0]
    """

    tolerance: float = 0.0
    """In regression, values closer than this agree; with 0 none do."""

    counts_exits = True
    highest = COUNT
    regression = True

    def start(self, examples: Shape) -> Streak:
        return Streak(prediction=np.full(examples, np.nan), run=np.zeros(examples, int))

    def step(self, seen: Streak, logits: Array) -> tuple[Streak, Array]:
        if logits.shape[-1] == 1:
            prediction = np.asarray(logits[..., 0], np.float64)
            with np.errstate(invalid="ignore"):  # inf - inf
                agree = np.abs(prediction - seen.prediction) < self.tolerance
        else:
            prediction = np.where(finite_rows(logits), logits.argmax(-1), np.nan)
            agree = prediction == seen.prediction
        run = np.where(agree, seen.run + 1, 0)
        return Streak(prediction, run), run
