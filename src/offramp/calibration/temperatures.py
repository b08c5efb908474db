"""A temperature for every exit, so that its probabilities say how often it is right.

*Reference*: Guo et al. 2017, arXiv:1706.04599. A rule that compares exits by one threshold gains where exits
differ in how sure they pretend to be. The answers stay the same.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from offramp.criteria.base import log_softmax
from offramp.errors import BadOption
from offramp.problems import MULTI_LABEL, REGRESSION
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]

FARTHEST = np.log(100)


@dataclass(frozen=True, eq=False)
class Temperatures:
    """One for each exit, and what they were fitted on, which `calibrate` holds against its own examples."""

    values: tuple[float, ...]
    fitted_on: Trace


def fit_temperatures(trace: Trace) -> Temperatures:
    """The temperature of each exit that makes the labels most likely.

    Fit it on other examples than a guarantee is tested on: a temperature is a choice too.
    """
    if trace.labels is None or trace.problem_type == REGRESSION:
        raise BadOption("temperatures are fitted to class labels, and this trace has none")
    choices, labels = trace.logits, np.asarray(trace.labels)
    if trace.problem_type == MULTI_LABEL:
        choices = np.stack([np.zeros_like(choices), choices], axis=-1)  # every label is a choice of two
    values = tuple(temperature(choices[:, exit], labels) for exit in range(choices.shape[1]))
    return Temperatures(values, fitted_on=trace)


def temperature(logits: Array, labels: Array) -> float:
    """Of one exit: logits (..., classes), labels (...); rows that are not finite do not count."""
    finite = np.isfinite(logits).all(-1)
    logits, labels = logits[finite].astype(np.float64), labels[finite].astype(np.int64)
    if not len(labels):
        return 1.0

    def surprise(log_temperature: float) -> float:
        chances = log_softmax(logits / np.exp(log_temperature))
        return -float(np.take_along_axis(chances, labels[:, None], -1).mean())

    found = minimize_scalar(surprise, bounds=(-FARTHEST, FARTHEST), method="bounded")
    return round(float(np.exp(found.x)), 4)
