"""A temperature for every exit, so that its probabilities match how often it is right.

*Reference*: Guo et al. 2017, arXiv:1706.04599. A rule that applies one threshold to all exits gains where
exits differ in overconfidence. Predictions stay the same.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from offramp.errors import BadOption
from offramp.problems import REGRESSION, Array
from offramp.rules.base import as_choices, log_softmax
from offramp.trace import Trace

LOG_RANGE = np.log(100)


@dataclass(frozen=True, eq=False)
class Temperatures:
    """One per exit, with the trace they were fitted on, so that `calibrate` can warn about reuse."""

    values: tuple[float, ...]
    fitted_on: Trace


def fit_temperatures(trace: Trace) -> Temperatures:
    """The temperature of each exit that maximizes the likelihood of the labels.

    Fit it on other examples than the guarantee is tested on: choosing a temperature is choosing a policy.
    """
    if trace.labels is None or trace.problem_type == REGRESSION:
        raise BadOption("temperatures are fitted to class labels, which this trace does not have")
    labels = np.asarray(trace.labels)
    choices = [as_choices(trace.logits[:, exit], trace.problem_type) for exit in range(len(trace.layers))]
    values = tuple(temperature(each, labels.reshape(each.shape[:2])) for each in choices)
    return Temperatures(values, fitted_on=trace)


def temperature(logits: Array, labels: Array) -> float:
    """For one exit: logits (..., classes), labels (...); non-finite rows are ignored."""
    finite = np.isfinite(logits).all(-1)
    logits, labels = logits[finite].astype(np.float64), labels[finite].astype(np.int64)
    if not len(labels):
        return 1.0

    def negative_log_likelihood(log_temperature: float) -> float:
        log_probabilities = log_softmax(logits / np.exp(log_temperature))
        return -float(np.take_along_axis(log_probabilities, labels[:, None], -1).mean())

    found = minimize_scalar(negative_log_likelihood, bounds=(-LOG_RANGE, LOG_RANGE), method="bounded")
    return round(float(np.exp(found.x)), 4)
