"""Rules that read how sure an exit is of its own prediction, or `ensemble` of the mean of all exits so far."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.errors import BadPolicy
from offramp.numerics import entropy, finite_rows, log_softmax, softmax
from offramp.problems import Array
from offramp.rules.base import PerExample, Rule, Shape


@dataclass(frozen=True)
class Entropy(Rule):
    """Exit when the entropy, in nats, is below the threshold.

    *Reference*: DeeBERT (Xin et al. 2020, arXiv:2004.12993); RomeBERT and ElasticBERT use the same
    rule, ELBERT the normalized one.
    *Relation*: `confidence` reads the top class only; entropy also depends on how the rest is spread.
    *Shapes*: logits (..., classes) to readiness (...), the negative entropy.
    *Example*:

    >>> _, readiness = Entropy().step(None, np.array([[0.0, 0.0], [0.0, 3.0]]))
    >>> readiness.round(4)
    array([-0.6931, -0.1909])
    """

    normalized: bool = False
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
        return state, -nats / np.log(logits.shape[-1]) if self.normalized else -nats


@dataclass(frozen=True)
class Confidence(Rule):
    """Exit when the largest probability is above the threshold.

    *Reference*: the usual rule of the field since BranchyNet (Teerapittayanon et al. 2016, arXiv:1709.01686),
    which used entropy.
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


@dataclass(frozen=True)
class Margin(Rule):
    """Exit when the largest probability is ahead of the second largest by more than the threshold.

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


@dataclass(frozen=True)
class MinProbability(Rule):
    """Exit when the smallest probability is below the threshold.

    *Reference*: ELBERT's `thres_name: logits` (Xie et al. 2021, arXiv:2107.00175).
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


@dataclass(frozen=True)
class Votes(PerExample):
    total: Array  # (..., classes) sum of log-probabilities
    exits: Array  # (...) number of exits in the sum


@dataclass(frozen=True)
class Ensemble(Rule):
    """Exit when the geometric mean of the exits so far is confident, and return that mean.

    *Reference*: Zero Time Waste (Wojcik et al. 2021, arXiv:2106.05409), without its learned weights.
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
