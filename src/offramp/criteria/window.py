"""Window: leave when confident, or when several exits lean the same way (ELBERT, arXiv:2107.00175).

Like `patience`, but also reads the probability of the prediction.
"""

from dataclasses import dataclass, field

import numpy as np

from offramp.criteria.base import ALWAYS_WRITTEN, Criterion, PerExample, Shape, entropy, softmax
from offramp.errors import BadPolicy
from offramp.problems import Array

SHAPES = ("side", "monotone", "range")


@dataclass(frozen=True)
class Lean(PerExample):
    prediction: Array  # (...) class at the previous exit, -1 for none
    probability: Array  # (...)
    run: Array  # (...) consecutive exits with this prediction
    past: Array  # (..., exits) every probability so far, kept for shape=range only


@dataclass(frozen=True)
class Window(Criterion):
    """Leave when normalized entropy is below `entropy`, or the last N exits fit a window, N the threshold.

    Every exit of the window predicts the same class with a probability above 0.5 + `margin`, and in addition
    `side`: nothing; `monotone`: the probability never falls; `range`: it varies by at most `range`.

    *Reference*: ELBERT's two-stage rule (`bias_1`, `bias_2`, `bias_3`). ELBERT watches class 0 for any
    number of classes; here it is the predicted class, which for two classes is the same.
    *Relation*: `patience_confidence` has one level of confidence and no first stage.
    *Shapes*: logits (..., classes) to readiness (...): the length of the window that fits, or infinity.
    *Example*:

    >>> rule = Window(shape="side", entropy=0.1, margin=0.0)
    >>> state = rule.start(1)
    >>> for logits in ([[0.2, 0.0]], [[0.3, 0.0]], [[9.0, 0.0]]):
    ...     state, readiness = rule.step(state, np.array(logits))
    ...     print(readiness)
    [1.]
    [2.]
    [inf]
    """

    shape: str = field(default="side", metadata=ALWAYS_WRITTEN)
    entropy: float = field(default=0.1, metadata=ALWAYS_WRITTEN)
    """The first stage, in parts of ln(classes); 0 turns it off."""
    margin: float = field(default=0.0, metadata=ALWAYS_WRITTEN)
    range: float | None = None
    """With shape=range: how far the probability may vary within the window."""

    counts_exits = True

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise BadPolicy(f"a window has shape={', '.join(SHAPES)}, not {self.shape!r}.")
        if not 0 <= self.margin < 0.5:
            raise BadPolicy(f"margin={self.margin} must be at least 0 and below 0.5: it is added to 0.5.")
        if (self.shape == "range") != (self.range is not None):
            raise BadPolicy("shape=range needs a range, as in range=0.05, and no other shape has one.")

    def start(self, examples: Shape) -> Lean:
        none = np.zeros(examples)
        return Lean(prediction=none - 1, probability=none, run=none, past=none[..., None][..., :0])

    def step(self, seen: Lean, logits: Array) -> tuple[Lean, Array]:
        probabilities = softmax(logits)
        prediction, probability = probabilities.argmax(-1), probabilities.max(-1)
        above = probability > 0.5 + self.margin
        continues = above & (prediction == seen.prediction)
        if self.shape == "monotone":
            continues &= probability >= seen.probability
        run = np.where(continues, seen.run + 1, above)

        past, length = seen.past, run
        if self.range is not None:
            past = np.concatenate([past, probability[..., None]], axis=-1)
            length = np.minimum(run, _steady(past, self.range))
        sure = entropy(logits) / np.log(logits.shape[-1]) < self.entropy
        return Lean(prediction, probability, run, past), np.where(sure, np.inf, length)


def _steady(past: Array, width: float) -> Array:
    """How many of the latest values lie within a range of this width."""
    back = past[..., ::-1]
    spread = np.maximum.accumulate(back, axis=-1) - np.minimum.accumulate(back, axis=-1)
    steady: Array = (spread <= width).sum(-1)
    return steady
