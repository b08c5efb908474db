"""Patience: leave when consecutive exits agree (Zhou et al. 2020, arXiv:2006.04152).

Like `window`, but asks only for equal answers and not for probabilities.
"""

from dataclasses import dataclass

import numpy as np

from offramp.criteria.base import Array, Criterion, Rows, Shape, finite_rows


@dataclass(frozen=True)
class Agreement(Rows):
    answer: Array  # (...) class or value at the exit before, NaN for none: NaN agrees with nothing
    run: Array  # (...) agreements in a row


@dataclass(frozen=True)
class Patience(Criterion):
    """Leave when this many exits in a row gave the answer of the one before.

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
    """In regression, values closer than this agree; 0 lets none agree."""

    strict = False
    regression = True

    def start(self, examples: Shape) -> Agreement:
        return Agreement(answer=np.full(examples, np.nan), run=np.zeros(examples, int))

    def step(self, seen: Agreement, logits: Array) -> tuple[Agreement, Array]:
        if logits.shape[-1] == 1:
            answer = np.asarray(logits[..., 0], np.float64)
            with np.errstate(invalid="ignore"):  # inf - inf
                agree = np.abs(answer - seen.answer) < self.tolerance
        else:
            answer = np.where(finite_rows(logits), logits.argmax(-1), np.nan)
            agree = answer == seen.answer
        run = np.where(agree, seen.run + 1, 0)
        return Agreement(answer, run), run
