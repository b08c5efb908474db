"""Ensemble: average over all exits so far (Zero Time Waste, Wojcik et al. 2021, arXiv:2106.05409)."""

from dataclasses import dataclass

import numpy as np

from offramp.criteria.base import Criterion, PerExample, Shape, finite_rows, log_softmax, softmax
from offramp.problems import Array


@dataclass(frozen=True)
class Votes(PerExample):
    total: Array  # (..., classes) sum of log-probabilities
    exits: Array  # (...) number of exits in the sum


@dataclass(frozen=True)
class Ensemble(Criterion):
    """Leave when the geometric mean of the exits so far is confident, and return that mean.

    *Reference*: Zero Time Waste, without its learned weights.
    *Relation*: `confidence`, with the mean in place of the exit's own logits, at the last exit too.
    *Shapes*: logits (..., classes) to readiness (...), the mean's largest probability.
    *Example*:

    >>> rule = Ensemble()
    >>> state, _ = rule.step(rule.start(1), np.log([[0.5, 0.5]]))
    >>> logits = np.log([[0.9, 0.1]])
    >>> state, readiness = rule.step(state, logits)
    >>> readiness, np.exp(rule.output(state, logits)).round(4)
    (array([0.75]), array([[0.75, 0.25]]))
    """

    highest = 1.0

    def start(self, examples: Shape) -> Votes:
        none = np.zeros(examples)
        return Votes(total=none[..., None], exits=none)

    def step(self, seen: Votes, logits: Array) -> tuple[Votes, Array]:
        votes = finite_rows(logits)
        total = seen.total + np.where(votes[..., None], log_softmax(logits), 0.0)
        state = Votes(total, seen.exits + votes)
        return state, softmax(self.output(state, logits)).max(-1)

    def output(self, state: Votes, logits: Array) -> Array:
        exits = state.exits[..., None]
        return np.where(exits > 0, log_softmax(state.total / np.maximum(exits, 1)), logits)
