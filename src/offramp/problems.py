"""The problems that a model can solve, by the names of transformers' `problem_type`, and what follows from each.

A problem is a string, so that configs and JSON files hold it as it is. What depends on the problem is a method or an
attribute here: another kind of problem is another subclass.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from offramp.errors import UnknownName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
else:
    Array = Any  # the command line starts without numpy


class Problem(str):
    """The meaning of a model's outputs.

    *Shapes*: `logits` (..., outputs); predictions (...), or (..., labels) where an example has several labels.
    """

    __slots__ = ()

    default_metrics: ClassVar[tuple[str, ...]]
    """The metrics of a task or trace that names none; the first is the headline."""

    def decode(self, logits: Array) -> Array:
        """The predictions that logits stand for."""
        raise NotImplementedError

    def same(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        """Elementwise, whether predictions are the reference's; numbers are the same within the tolerance."""
        import numpy as np

        return np.asarray(predictions == reference)

    def agree(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        """(...) whether the prediction of each example is the reference's, in all of its labels."""
        return self.same(predictions, reference, tolerance)


class SingleLabel(Problem):
    """One of several classes; a prediction is its index."""

    __slots__ = ()
    default_metrics = ("acc", "macro_f1")

    def decode(self, logits: Array) -> Array:
        decoded: Array = logits.argmax(-1)
        return decoded


class MultiLabel(Problem):
    """Any number of labels; a prediction is a row of 0 and 1.

    >>> import numpy as np
    >>> MULTI_LABEL.decode(np.array([[0.2, 0.9], [1.5, -1.0]])).tolist()
    [[1, 1], [1, 0]]
    """

    __slots__ = ()
    default_metrics = ("micro_f1", "macro_f1", "acc")

    def decode(self, logits: Array) -> Array:
        decoded: Array = (logits > 0).astype("int8")
        return decoded

    def agree(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        import numpy as np

        return np.asarray(self.same(predictions, reference).all(-1))


class Regression(Problem):
    """A number."""

    __slots__ = ()
    default_metrics = ("pearson", "spearmanr", "corr")

    def decode(self, logits: Array) -> Array:
        decoded: Array = logits[..., 0]
        return decoded

    def same(self, predictions: Array, reference: Array, tolerance: float | None = None) -> Array:
        import numpy as np

        return np.asarray(np.abs(predictions - reference) <= (tolerance or 0.0))


SINGLE_LABEL: Final = SingleLabel("single_label_classification")
MULTI_LABEL: Final = MultiLabel("multi_label_classification")
REGRESSION: Final = Regression("regression")
PROBLEMS: Final[dict[str, Problem]] = {
    problem: problem for problem in (SINGLE_LABEL, MULTI_LABEL, REGRESSION)
}


def problem_named(name: str) -> Problem:
    """The problem that a file, a config or a user names."""
    if name not in PROBLEMS:
        raise UnknownName(f"problem_type {name!r} is not one of {', '.join(PROBLEMS)}.")
    return PROBLEMS[name]


def problem_of(outputs: int, name: str | None) -> Problem:
    """The problem of a model; where its config names none, one output means a regression."""
    return problem_named(name or (REGRESSION if outputs == 1 else SINGLE_LABEL))


PROBLEM_TYPES: Final = tuple(PROBLEMS)
DEFAULT_METRICS: Final[dict[str, tuple[str, ...]]] = {
    problem: problem.default_metrics for problem in PROBLEMS.values()
}


def problem_type_of(outputs: int, problem_type: str | None) -> str:
    return problem_type or (REGRESSION if outputs == 1 else SINGLE_LABEL)


def is_regression(outputs: int, problem_type: str | None) -> bool:
    return problem_type_of(outputs, problem_type) == REGRESSION


def decode(logits: Array, problem_type: str) -> Array:
    return problem_named(problem_type).decode(logits)
