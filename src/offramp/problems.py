"""The problems that a model can solve, by the names of transformers' `problem_type`, or for tokens of its task, and
what follows from each.

A problem is a string, so that configs and JSON files hold it as it is. What depends on the problem is a method or an
attribute here: another kind of problem is another subclass.
"""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from offramp.errors import UnknownName
from offramp.numerics import Array as Array
from offramp.numerics import softmax

if TYPE_CHECKING:
    from torch import Tensor

UNLABELLED = -100
"""The label of an example, or a token, without one, as in PyTorch."""


class Problem(str):
    """The meaning of a model's outputs.

    *Shapes*: `logits` (..., outputs); predictions (...), or (..., labels) where an example has several labels.
    """

    __slots__ = ()

    has_classes: ClassVar[bool] = True
    """Whether predictions are classes or labels, not numbers."""
    multi_label: ClassVar[bool] = False
    """Whether an example has any number of labels: its prediction is a row."""
    of_tokens: ClassVar[bool] = False
    """Whether each token of a text has logits, and the prediction for the text is made from all of them."""
    decides: ClassVar[str]
    """What is decided without an operating point, in words."""
    default_metrics: ClassVar[tuple[str, ...]]
    """The metrics of a task or trace that names none; the first is the headline."""
    metrics: ClassVar[tuple[str, ...]]
    """All metrics that suit."""

    def decode(self, logits: Array) -> Array:
        """The predictions that logits stand for."""
        raise NotImplementedError

    def probabilities(self, logits: Array) -> Array:
        """(..., labels), NaN where logits are not finite; (..., 0) if there are no classes."""
        raise NotImplementedError

    def named(self, logits: Array, chances: Array, names: Sequence[str]) -> tuple[list[Any], list[float]]:
        """In words, the prediction for each row of logits and of their probabilities, and its score."""
        raise NotImplementedError

    def same(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        """Elementwise, whether predictions are the reference's; numbers are the same within the tolerance."""
        return np.asarray(predictions == reference)

    def agree(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        """(...) whether the prediction of each example is the reference's, in all of its labels."""
        return self.same(predictions, reference, tolerance)

    def choices(self, logits: Array) -> Array:
        """(examples, choices, classes): the choices among classes that a rule decides on, here a single one."""
        return logits[:, None]

    def chosen(self, choices: Array) -> Array:
        """(examples, outputs): the logits that such choices stand for."""
        chosen: Array = choices[:, 0]
        return chosen

    def expected(self, outputs: int) -> str:
        """The labels of a model with this many outputs, in words."""
        raise NotImplementedError

    def is_label(self, label: Any, outputs: int) -> bool:
        """Whether a value of a data set is a label of such a model."""
        raise NotImplementedError

    def loss(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        """The mean loss of each exit: (examples, exits, outputs) -> (exits,)."""
        raise NotImplementedError

    def divergence(self, student: "Tensor", teacher: "Tensor", temperature: float) -> "Tensor":
        """The divergence of each exit from its teacher: (examples, exits, outputs) twice -> (exits,).

        The mean over examples and outputs, as in RomeBERT: KL divided by the number of classes.
        """
        raise NotImplementedError

    def correctness(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        """How correct each exit is, from 0 to 1: (examples, exits, outputs) -> (examples, exits)."""
        raise NotImplementedError


class SingleLabel(Problem):
    """One of several classes; a prediction is its index."""

    __slots__ = ()
    decides: ClassVar[str] = "the most likely class"
    default_metrics: ClassVar[tuple[str, ...]] = ("acc", "macro_f1")
    metrics: ClassVar[tuple[str, ...]] = ("mcc", "acc", "f1", "acc_and_f1", "macro_f1", "micro_f1")

    def decode(self, logits: Array) -> Array:
        decoded: Array = logits.argmax(-1)
        return decoded

    def probabilities(self, logits: Array) -> Array:
        return softmax(logits)

    def named(self, logits: Array, chances: Array, names: Sequence[str]) -> tuple[list[str], list[float]]:
        """The most likely class, and its probability."""
        rows = chances.tolist()  # for a single text, faster than numpy
        scores = [*map(max, rows)]
        return [names[row.index(score)] for row, score in zip(rows, scores, strict=True)], scores

    def expected(self, outputs: int) -> str:
        return f"0 to {outputs - 1}"

    def is_label(self, label: Any, outputs: int) -> bool:
        return isinstance(label, int) and 0 <= label < outputs

    def loss(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        from torch.nn.functional import cross_entropy

        by_exit = labels.view(-1, 1).expand(-1, logits.shape[1])  # (examples, exits)
        return cross_entropy(logits.transpose(1, 2), by_exit, reduction="none").mean(dim=0)

    def divergence(self, student: "Tensor", teacher: "Tensor", temperature: float) -> "Tensor":
        from torch.nn.functional import kl_div

        student, teacher = (student / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
        values = kl_div(student, teacher, reduction="none", log_target=True)
        return temperature**2 * values.mean(dim=(0, 2))

    def correctness(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        return (logits.argmax(-1) == labels.view(-1, 1)).to(logits.dtype)


class TokenTags(SingleLabel):
    """One of several tags for each token of a text, from which spans are decoded; a prediction is a tag's index.

    Arrays have a row for each token of all texts; losses of training, a row for each token that is learned from.
    """

    __slots__ = ()
    of_tokens = True
    decides = "the most likely tag of each word"
    default_metrics = metrics = ("entity_f1",)

    def expected(self, outputs: int) -> str:
        return f"a list of tags from 0 to {outputs - 1}, one for each word"

    def is_label(self, label: Any, outputs: int) -> bool:
        return isinstance(label, list) and all(isinstance(tag, int) and 0 <= tag < outputs for tag in label)


class MultiLabel(Problem):
    """Any number of labels; a prediction is a row of 0 and 1.

    >>> MULTI_LABEL.decode(np.array([[0.2, 0.9], [1.5, -1.0]])).tolist()
    [[1, 1], [1, 0]]
    >>> MULTI_LABEL.probabilities(np.array([[0.0, 0.0], [1000.0, -1000.0]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    """

    __slots__ = ()
    multi_label = True
    decides = "each label that is more likely than not"
    default_metrics = ("micro_f1", "macro_f1", "acc")
    metrics = ("acc", "macro_f1", "micro_f1")

    def decode(self, logits: Array) -> Array:
        decoded: Array = (logits > 0).astype("int8")
        return decoded

    def probabilities(self, logits: Array) -> Array:
        return 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))

    def named(
        self, logits: Array, chances: Array, names: Sequence[str]
    ) -> tuple[list[tuple[str, ...]], list[float]]:
        """All labels above 0.5, and the probability of being right about the least certain one."""
        labels = [tuple(np.array(names)[row].tolist()) for row in chances > 0.5]
        return labels, np.maximum(chances, 1 - chances).min(-1).tolist()

    def agree(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        return np.asarray(self.same(predictions, reference).all(-1))

    def choices(self, logits: Array) -> Array:
        """One choice per label: absent against present."""
        return np.stack([np.zeros_like(logits), logits], axis=-1)

    def chosen(self, choices: Array) -> Array:
        chosen: Array = choices[..., 1] - choices[..., 0]
        return chosen

    def expected(self, outputs: int) -> str:
        return f"a list of {outputs} zeros and ones"

    def is_label(self, label: Any, outputs: int) -> bool:
        return isinstance(label, list) and len(label) == outputs and all(value in (0, 1) for value in label)

    def loss(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        from torch.nn.functional import binary_cross_entropy_with_logits

        by_exit = labels.view(len(labels), 1, -1).expand_as(logits).to(logits.dtype)
        return binary_cross_entropy_with_logits(logits, by_exit, reduction="none").mean(dim=(0, 2))

    def divergence(self, student: "Tensor", teacher: "Tensor", temperature: float) -> "Tensor":
        from torch.nn.functional import binary_cross_entropy_with_logits

        student, teacher = student / temperature, teacher / temperature
        probabilities = teacher.sigmoid()
        cross = binary_cross_entropy_with_logits(student, probabilities, reduction="none")
        values = cross - binary_cross_entropy_with_logits(teacher, probabilities, reduction="none")
        return temperature**2 * values.mean(dim=(0, 2))

    def correctness(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        target = labels.view(len(labels), 1, -1)
        return ((logits > 0) == (target > 0.5)).to(logits.dtype).mean(-1)


class Regression(Problem):
    """A number."""

    __slots__ = ()
    has_classes = False
    decides = "the number"
    default_metrics = metrics = ("pearson", "spearmanr", "corr")

    def decode(self, logits: Array) -> Array:
        decoded: Array = logits[..., 0]
        return decoded

    def probabilities(self, logits: Array) -> Array:
        return logits[..., :0]

    def named(self, logits: Array, chances: Array, names: Sequence[str]) -> tuple[list[None], list[float]]:
        """No label; the score is the number."""
        return [None] * len(logits), logits[:, 0].tolist()

    def same(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        return np.asarray(np.abs(predictions - reference) <= (tolerance or 0.0))

    def expected(self, outputs: int) -> str:
        return "a number"

    def is_label(self, label: Any, outputs: int) -> bool:
        return isinstance(label, int | float) and isfinite(label)

    def loss(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        from torch.nn.functional import mse_loss

        by_exit = labels.view(len(labels), 1, -1).expand_as(logits).to(logits.dtype)
        return mse_loss(logits, by_exit, reduction="none").mean(dim=(0, 2))

    def divergence(self, student: "Tensor", teacher: "Tensor", temperature: float) -> "Tensor":
        """The squared distance, at any temperature."""
        from torch.nn.functional import mse_loss

        return mse_loss(student, teacher, reduction="none").mean(dim=(0, 2))

    def correctness(self, logits: "Tensor", labels: "Tensor") -> "Tensor":
        return 1 - (logits - labels.view(len(labels), 1, -1)).abs().mean(-1).tanh()


SINGLE_LABEL: Final = SingleLabel("single_label_classification")
MULTI_LABEL: Final = MultiLabel("multi_label_classification")
REGRESSION: Final = Regression("regression")
TOKENS: Final = TokenTags("token_classification")
PROBLEMS: Final[dict[str, Problem]] = {
    problem: problem for problem in (SINGLE_LABEL, MULTI_LABEL, REGRESSION, TOKENS)
}


def problem_named(name: str) -> Problem:
    """The problem that a file, a config or a user names."""
    if isinstance(name, Problem):
        return name
    if name not in PROBLEMS:
        raise UnknownName(f"problem_type={name!r} is not one of {', '.join(PROBLEMS)}")
    return PROBLEMS[name]


def problem_of(outputs: int, name: str | None) -> Problem:
    """The problem of a model; where its config names none, one output means a regression."""
    return problem_named(name or (REGRESSION if outputs == 1 else SINGLE_LABEL))
