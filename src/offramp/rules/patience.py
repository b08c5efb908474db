"""Rules that read the history of an example: consecutive exits that agree."""

from dataclasses import dataclass, field

import numpy as np

from offramp.errors import BadPolicy
from offramp.numerics import entropy, finite_rows, softmax
from offramp.problems import Array
from offramp.rules.base import ALWAYS_WRITTEN, COUNT, PerExample, Rule, Shape


@dataclass(frozen=True)
class Streak(PerExample):
    prediction: Array  # (...) class or value at the previous exit, NaN for none: NaN agrees with nothing
    run: Array  # (...) consecutive agreements


@dataclass(frozen=True)
class Patience(Rule):
    """Exit once this many consecutive exits agree with their predecessor.

    *Reference*: PABEE (Zhou et al. 2020, arXiv:2006.04152). The first exit agrees with nothing, so
    patience t exits at the (t + 1)-th exit at the earliest, and 0 means never.
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
            prediction = logits[..., 0].astype(np.float64)
            with np.errstate(invalid="ignore"):  # inf - inf
                agree = np.abs(prediction - seen.prediction) < self.tolerance
        else:
            prediction = np.where(finite_rows(logits), logits.argmax(-1), np.nan)
            agree = prediction == seen.prediction
        run = np.where(agree, seen.run + 1, 0)
        return Streak(prediction, run), run


@dataclass(frozen=True)
class ConfidentRun(PerExample):
    prediction: Array  # (...) class at the previous exit, -1 for none
    run: Array  # (...) consecutive exits that were confident of it


@dataclass(frozen=True)
class PatienceConfidence(Rule):
    """Exit when this many consecutive exits, this one included, predicted the same class with enough confidence.

    *Reference*: PCEE-BERT, Zhang et al. 2022, Findings of NAACL, "Patient and Confident Early Exiting".
    *Relation*: with a threshold of 1 it is `confidence`; `patience` counts agreements, so one exit less.
    *Shapes*: logits (..., classes) to readiness (...), the run of confident exits.
    *Example*:

    >>> rule = PatienceConfidence(confidence=0.8)
    >>> state = rule.start(1)
    >>> for logits in ([[2.0, 0.0]], [[3.0, 0.0]], [[1.0, 0.0]]):
    ...     state, readiness = rule.step(state, np.array(logits))
    ...     print(readiness)
    [1]
    [2]
    [0]
    """

    confidence: float = field(default=0.9, metadata=ALWAYS_WRITTEN)
    """The lower bound on the largest probability, at every exit of the run."""

    counts_exits = True
    highest = COUNT

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise BadPolicy(f"confidence={self.confidence} must be at least 0 and below 1: a probability.")

    def start(self, examples: Shape) -> ConfidentRun:
        return ConfidentRun(prediction=np.full(examples, -1), run=np.zeros(examples, int))

    def step(self, seen: ConfidentRun, logits: Array) -> tuple[ConfidentRun, Array]:
        probabilities = softmax(logits)
        prediction = logits.argmax(-1)
        confident = probabilities.max(-1) > self.confidence
        run = np.where(confident & (prediction == seen.prediction), seen.run + 1, confident.astype(int))
        return ConfidentRun(prediction, run), run


SHAPES = ("side", "monotone", "range")


@dataclass(frozen=True)
class Lean(PerExample):
    prediction: Array  # (...) class at the previous exit, -1 for none
    probability: Array  # (...)
    run: Array  # (...) consecutive exits with this prediction
    past: Array  # (..., exits) every probability so far, kept for shape=range only


@dataclass(frozen=True)
class Window(Rule):
    """Exit when normalized entropy is below `entropy`, or the last N exits fit a window, N the threshold.

    Every exit of the window predicts the same class with a probability above 0.5 + `margin`, and in addition
    `side`: nothing; `monotone`: the probability never falls; `range`: it varies by at most `range`.

    *Reference*: ELBERT's two-stage rule (Xie et al. 2021, arXiv:2107.00175; `bias_1`, `bias_2`,
    `bias_3`). ELBERT watches class 0 for any number of classes; here it is the predicted class,
    which for two classes is the same.
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
        prediction, probability = logits.argmax(-1), probabilities.max(-1)
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
