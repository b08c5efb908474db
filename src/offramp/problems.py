"""The kinds of problem, in the words of transformers' `problem_type`."""

from typing import Final

SINGLE_LABEL: Final = "single_label_classification"
MULTI_LABEL: Final = "multi_label_classification"
REGRESSION: Final = "regression"
PROBLEM_TYPES: Final = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)
