"""Scores of every threshold at once: from counts where the metric allows it, from the rows elsewhere."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offramp.curves.counts import SCORES, acc
from offramp.curves.leaving import Leaving
from offramp.errors import BadSweep
from offramp.tasks.metrics import compute
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]
Interval: TypeAlias = tuple[float, float]

AGREEMENT = "agreement"
DEFAULT_METRIC = {
    "single_label_classification": "acc",
    "multi_label_classification": "micro_f1",
    "regression": "corr",
}
MOST_CELLS = 50_000_000
"""Beyond so many counts (hundreds of classes) going through the rows needs less memory."""


def metrics_of(trace: Trace) -> tuple[str, ...]:
    """What a trace can be scored by, the headline first: its own metrics, and agreement with full depth."""
    names: tuple[str, ...] = ()
    if trace.labels is not None:
        names = tuple(trace.metrics) or (DEFAULT_METRIC[trace.problem_type],)
    if {"f1", "acc_and_f1"} & set(names) and trace.logits.shape[-1] != 2:
        raise BadSweep("f1 is of class 1 against class 0; with other classes take macro_f1 or micro_f1")
    if trace.problem_type != "regression":
        names += (AGREEMENT,)
    if not names:
        raise BadSweep("regression without labels has no score; collect the trace from data with labels")
    return names


def answers_of(logits: Array, problem_type: str) -> Array:
    """(exits, examples) of classes or numbers, or (exits, examples, labels) of 0 and 1."""
    if problem_type == "single_label_classification":
        answers = logits.argmax(-1)
    elif problem_type == "multi_label_classification":
        answers = (logits > 0).astype(np.int8)
    else:
        answers = logits[..., 0]
    return np.ascontiguousarray(np.moveaxis(answers, 1, 0))


def scores(trace: Trace, left: Leaving, answers: Array) -> dict[str, Array]:
    """(thresholds,) for each metric, when every example gives the answer of the exit that it takes."""
    own = [name for name in metrics_of(trace) if name != AGREEMENT]
    found: dict[str, Array] = {}
    if own and countable(trace, left, own):
        counts = label_counts(trace, left, answers)
        found = {name: SCORES[name](counts) for name in own}
    elif own:
        rows = [compute(own, trace.labels, given) for given in given_answers(left, answers)]  # type: ignore[arg-type]
        found = {name: np.array([row[name] for row in rows]) for name in own}
    if trace.problem_type != "regression":
        found[AGREEMENT] = acc(agreement_counts(trace, left, answers))
    return found


def intervals(trace: Trace, left: Leaving, answers: Array, resamples: int, seed: int) -> list[Interval]:
    """The middle 95 per cent of the headline score over bootstrap resamples, for each threshold."""
    rng = np.random.default_rng(seed)
    headline = metrics_of(trace)[0]
    if headline == AGREEMENT:
        counts = agreement_counts(trace, left, answers)
        return [middle(resampled_counts(acc, count, resamples, rng)) for count in counts]
    if countable(trace, left, [headline]):
        counts = label_counts(trace, left, answers)
        return [middle(resampled_counts(SCORES[headline], count, resamples, rng)) for count in counts]
    return [
        middle(resampled_rows(headline, trace.labels, given, resamples, rng))
        for given in given_answers(left, answers)
    ]


def countable(trace: Trace, left: Leaving, metrics: list[str]) -> bool:
    """Whether a table of labels and answers says all that these metrics need."""
    classes = trace.logits.shape[-1]
    small = classes**2 * (len(left.thresholds) + 1) <= MOST_CELLS
    return small and trace.problem_type == "single_label_classification" and SCORES.keys() >= set(metrics)


def label_counts(trace: Trace, left: Leaving, answers: Array) -> Array:
    """(thresholds, classes, classes) how often a label got an answer."""
    classes = trace.logits.shape[-1]
    rows = np.asarray(trace.labels) * classes
    return left.counts(lambda exit: rows + answers[exit], classes**2).reshape(-1, classes, classes)


def agreement_counts(trace: Trace, left: Leaving, answers: Array) -> Array:
    """(thresholds, 2, 2) how often an answer is that of full depth, as a table with one row in use."""
    full = answers_of(trace.logits[:, -1:], trace.problem_type)[0]

    def same(exit: int) -> Array:
        equal = answers[exit] == full
        return np.asarray(equal if equal.ndim == 1 else equal.all(-1)).astype(np.int64) + 2

    return left.counts(same, 4).reshape(-1, 2, 2)


def given_answers(left: Leaving, answers: Array) -> Iterator[Array]:
    """For each threshold, what each example answers."""
    everybody = np.arange(answers.shape[1])
    for index in range(len(left.thresholds)):
        yield answers[left.exits(index), everybody]


def resampled_counts(metric: Callable[[Array], Array], counts: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) scores; drawing examples with replacement is drawing a table from a multinomial."""
    taken = np.flatnonzero(counts)
    total = counts.sum()
    tables = np.zeros((resamples, counts.size), np.int64)
    tables[:, taken] = rng.multinomial(total, counts.ravel()[taken] / total, size=resamples)
    return metric(tables.reshape(-1, *counts.shape))


def resampled_rows(metric: str, labels: Any, given: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) scores of examples drawn with replacement."""
    draws = (rng.integers(len(given), size=len(given)) for _ in range(resamples))
    return np.array([compute([metric], labels[rows], given[rows])[metric] for rows in draws])


def middle(scores: Array) -> Interval:
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)
