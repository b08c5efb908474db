"""The problem types, in the words of transformers' `problem_type`, and what follows from each."""

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
else:
    Array = Any  # the command line starts without numpy

SINGLE_LABEL: Final = "single_label_classification"
MULTI_LABEL: Final = "multi_label_classification"
REGRESSION: Final = "regression"
PROBLEM_TYPES: Final = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)

DEFAULT_METRICS: Final = {
    SINGLE_LABEL: ("acc", "macro_f1"),
    MULTI_LABEL: ("micro_f1", "macro_f1", "acc"),
    REGRESSION: ("pearson", "spearmanr", "corr"),
}
"""The metrics of a task or trace that names none; the first is the headline."""


def problem_type_of(outputs: int, problem_type: str | None) -> str:
    """The problem type of a model; where its config names none, one output means a regression."""
    return problem_type or (REGRESSION if outputs == 1 else SINGLE_LABEL)


def is_regression(outputs: int, problem_type: str | None) -> bool:
    return problem_type_of(outputs, problem_type) == REGRESSION


def decode(logits: Array, problem_type: str) -> Array:
    """Logits (..., outputs) as predictions: class indices, numbers, or rows of 0 and 1.

    >>> import numpy as np
    >>> decode(np.array([[0.2, 0.9], [1.5, -1.0]]), MULTI_LABEL).tolist()
    [[1, 1], [1, 0]]
    """
    decoded: Array = logits[..., 0]
    if problem_type == SINGLE_LABEL:
        decoded = logits.argmax(-1)
    elif problem_type == MULTI_LABEL:
        decoded = (logits > 0).astype("int8")
    return decoded
