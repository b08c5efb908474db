"""The kinds of problem, in the words of transformers' `problem_type`."""

from typing import Final

SINGLE: Final = "single_label_classification"
MANY: Final = "multi_label_classification"
REGRESSION: Final = "regression"
PROBLEMS: Final = (SINGLE, MANY, REGRESSION)
