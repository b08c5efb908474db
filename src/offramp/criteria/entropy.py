"""Entropy: leave when the distribution over classes is sharp (Xin et al. 2020, arXiv:2004.12993)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.criteria.base import Criterion, entropy
from offramp.errors import BadPolicy
from offramp.problems import Array


@dataclass(frozen=True)
class Entropy(Criterion):
    """Leave when the entropy, in nats, is below the threshold.

    *Reference*: DeeBERT; RomeBERT and ElasticBERT use the same rule, ELBERT the normalized one.
    *Relation*: `confidence` reads the top class only; entropy also depends on how the rest is spread.
    *Shapes*: logits (..., classes) to readiness (...), the negative entropy.
    *Example*:

    >>> _, readiness = Entropy().step(None, np.array([[0.0, 0.0], [0.0, 3.0]]))
    >>> readiness.round(4)
    array([-0.6931, -0.1909])
    """

    normalised: bool = False
    """Divide by ln(classes), so that 1 is the most uncertain for any number of classes."""
    top: int | None = None
    """Use only this many of the most likely classes, renormalized: a long tail of classes would dominate."""

    sign = -1
    highest = 0.0

    def __post_init__(self) -> None:
        if self.top is not None and self.top < 2:
            raise BadPolicy(f"top={self.top} leaves no uncertainty to measure; use at least 2.")

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        if self.top is not None and self.top < logits.shape[-1]:
            logits = np.partition(logits, -self.top, axis=-1)[..., -self.top :]
        nats = entropy(logits)
        return state, -nats / np.log(logits.shape[-1]) if self.normalised else -nats
