"""Scores of every threshold at once: from counts where the metric allows it, from the rows elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offramp.curves.count_metrics import SCORES, Counts
from offramp.curves.exit_table import Leaving
from offramp.errors import BadOption
from offramp.policy import Policy, fold
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from offramp.problems import decode as answers_of
from offramp.tasks.metrics import compute
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]
Interval: TypeAlias = tuple[float, float]

AGREEMENT = "agreement"
RIGHT_OR_WRONG = ("acc", "micro_f1", AGREEMENT)
"""Metrics, of one label an example, that are a share of examples."""
DEFAULT_METRIC = {
    SINGLE_LABEL: "acc",
    MULTI_LABEL: "micro_f1",
    REGRESSION: "corr",
}


@dataclass(frozen=True)
class Readout:
    """What a rule makes of every exit for every example of a trace."""

    readiness: Array
    """(examples, exits)"""
    answers: Array
    """(exits, examples) classes or numbers, or (exits, examples, labels) 0 or 1."""


def read_out(trace: Trace, policy: Policy) -> Readout:
    """Fold a policy's rule over a trace."""
    logits = policy.tempered(trace.logits)
    folded = fold(policy.criterion, logits, trace.gates, trace.layers, trace.problem_type)
    answers = np.moveaxis(answers_of(folded.logits, trace.problem_type), 1, 0)
    return Readout(folded.readiness, np.ascontiguousarray(answers))


def at_full_depth(trace: Trace) -> Array:
    """(examples,) or (examples, labels): what the whole model answers."""
    return answers_of(trace.logits[:, -1], trace.problem_type)


def metrics_of(trace: Trace) -> tuple[str, ...]:
    """What a trace can be scored by, the headline first: its own metrics, and agreement with full depth."""
    names: tuple[str, ...] = ()
    if trace.labels is not None:
        names = tuple(trace.metrics) or (DEFAULT_METRIC[trace.problem_type],)
    if {"f1", "acc_and_f1"} & set(names) and trace.logits.shape[-1] != 2:
        raise BadOption("f1 is of class 1 against class 0; with other classes take macro_f1 or micro_f1")
    if trace.problem_type != REGRESSION:
        names += (AGREEMENT,)
    if not names:
        raise BadOption("regression without labels has no score; collect the trace from data with labels")
    return names


def scores(trace: Trace, left: Leaving, answers: Array) -> dict[str, Array]:
    """(thresholds,) for each metric, when every example gives the answer of the exit that it takes."""
    own = [name for name in metrics_of(trace) if name != AGREEMENT]
    found: dict[str, Array] = {}
    if own and countable(trace, own):
        counts = label_counts(trace, left, answers)
        found = {name: SCORES[name](counts) for name in own}
    elif own:
        rows = [compute(own, trace.labels, given) for given in given_answers(left, answers)]  # type: ignore[arg-type]
        found = {name: np.array([row[name] for row in rows]) for name in own}
    if trace.problem_type != REGRESSION:
        found[AGREEMENT] = hits(at_full_depth(trace), left, answers) / len(trace)
    return found


def intervals(trace: Trace, left: Leaving, answers: Array, resamples: int, seed: int) -> list[Interval]:
    """The middle 95 per cent of the headline score over bootstrap resamples, for each threshold."""
    rng = np.random.default_rng(seed)
    headline = metrics_of(trace)[0]
    if headline == AGREEMENT or (headline in RIGHT_OR_WRONG and countable(trace, [headline])):
        truth = at_full_depth(trace) if headline == AGREEMENT else trace.labels
        shares = hits(truth, left, answers) / len(trace)
        return [middle(rng.binomial(len(trace), share, resamples) / len(trace)) for share in shares]
    resampled = resampled_counts if countable(trace, [headline]) else resampled_rows
    return [
        middle(resampled(headline, trace, given, resamples, rng)) for given in given_answers(left, answers)
    ]


def countable(trace: Trace, metrics: list[str]) -> bool:
    """Whether counts by class say all that these metrics need."""
    return trace.problem_type == SINGLE_LABEL and SCORES.keys() >= set(metrics)


def label_counts(trace: Trace, left: Leaving, answers: Array) -> Counts:
    """At each threshold."""
    labels, classes = np.asarray(trace.labels), trace.logits.shape[-1]
    wrong_and_right = left.counts(lambda exit: 2 * answers[exit] + (answers[exit] == labels), 2 * classes)
    wrong_and_right = wrong_and_right.reshape(-1, classes, 2)
    return Counts(
        label=np.broadcast_to(np.bincount(labels, minlength=classes), wrong_and_right.shape[:2]),
        answer=wrong_and_right.sum(-1),
        both=wrong_and_right[..., 1],
    )


def hits(truth: Any, left: Leaving, answers: Array) -> Array:
    """(thresholds,) how many answers are the truth, in every label if there are many."""

    def same(exit: int) -> Array:
        equal = answers[exit] == truth
        return np.asarray(equal if equal.ndim == 1 else equal.all(-1)).astype(np.int64)

    return left.counts(same, 2)[:, 1]


def given_answers(left: Leaving, answers: Array) -> Iterator[Array]:
    """For each threshold, what each example answers."""
    everybody = np.arange(answers.shape[1])
    for index in range(len(left.thresholds)):
        yield answers[left.exits(index), everybody]


def resampled_counts(metric: str, trace: Trace, given: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) scores; drawing examples with replacement is drawing from a multinomial over (label, answer)."""
    classes = trace.logits.shape[-1]
    pairs, times = np.unique(np.asarray(trace.labels) * classes + given, return_counts=True)
    drawn = rng.multinomial(len(given), times / len(given), size=resamples)
    label, answer = pairs // classes, pairs % classes

    def by_class(of: Array, where: Any = slice(None)) -> Array:
        total = np.zeros((classes, resamples), np.int64)
        np.add.at(total, of[where], drawn.T[where])
        return total.T

    return SCORES[metric](Counts(by_class(label), by_class(answer), by_class(label, label == answer)))


def resampled_rows(metric: str, trace: Trace, given: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) scores of examples drawn with replacement."""
    labels = np.asarray(trace.labels)
    draws = (rng.integers(len(given), size=len(given)) for _ in range(resamples))
    return np.array([compute([metric], labels[rows], given[rows])[metric] for rows in draws])


def middle(scores: Array) -> Interval:
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)
