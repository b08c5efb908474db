"""Scores at every threshold: from counts by class where the metric allows it, else from the predictions.

A sweep with bootstrap scores 100,000 sets of predictions, and scikit-learn takes milliseconds for each. The metrics
computed from counts have the names and values of `data.metrics`, which the tests check.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from offramp.data.metrics import compute, score_logits
from offramp.errors import BadOption
from offramp.lists import Lists
from offramp.measuring.exit_table import ExitTable, RuleOutput
from offramp.policy import Policy
from offramp.problems import SINGLE_LABEL, Array
from offramp.tags import are_among, begin_texts
from offramp.trace import Trace

Interval: TypeAlias = tuple[float, float]

AGREEMENT = "agreement"


def metric_names(trace: Trace) -> tuple[str, ...]:
    """The metrics that a trace is scored by, the headline first: its own, then agreement with the reference."""
    names: tuple[str, ...] = ()
    if trace.labels is not None:
        names = tuple(trace.metrics) or trace.problem.default_metrics[:1]
    if {"f1", "acc_and_f1"} & set(names) and trace.logits.shape[-1] != 2:
        raise BadOption("f1 is for two classes; with more, use macro_f1 or micro_f1")
    if trace.problem.has_classes:
        names += (AGREEMENT,)
    if not names:
        raise BadOption("regression without labels cannot be scored; collect the trace from labelled data")
    return names


def score(trace: Trace, logits: Array) -> dict[str, float]:
    """The task's metrics of the logits that examples get; empty without labels."""
    if trace.labels is None:
        return {}
    names = [name for name in metric_names(trace) if name != AGREEMENT]
    if trace.tagged is None:
        return score_logits(names, trace.labels, logits, trace.problem)
    counts = span_counts(trace, logits[trace.tagged].argmax(-1))
    return dict.fromkeys(names, float(entity_f1(counts.sum(0))))


def scores(trace: Trace, table: ExitTable, output: RuleOutput) -> dict[str, Array]:
    """(thresholds,) for each metric, with each example predicted by the exit that it takes."""
    names = [name for name in metric_names(trace) if name != AGREEMENT]
    predictions = output.predictions
    result: dict[str, Array] = {}
    if names and trace.tagged is not None:
        by_threshold = [span_counts(trace, taken).sum(0) for taken in tags_taken(trace, table, output)]
        result = dict.fromkeys(names, entity_f1(np.array(by_threshold)))
    elif names and from_counts(trace, names):
        counts = class_counts(trace, table, predictions)
        result = {name: COUNT_METRICS[name](counts) for name in names}
    elif names:
        rows = [compute(names, trace.labels, taken) for taken in predictions_taken(table, predictions)]  # type: ignore[arg-type]
        result = {name: np.array([row[name] for row in rows]) for name in names}
    if trace.problem.has_classes:
        result[AGREEMENT] = shares_that_agree(trace, table, predictions)
    return result


def intervals(
    trace: Trace, table: ExitTable, output: RuleOutput, resamples: int, seed: int
) -> list[Interval]:
    """The 95% bootstrap interval of the headline score at each threshold."""
    rng = np.random.default_rng(seed)
    headline, predictions = metric_names(trace)[0], output.predictions
    countable = from_counts(trace, [headline])
    if headline == AGREEMENT or (countable and headline in ("acc", "micro_f1")):
        shares, texts = shares_that_agree(trace, table, predictions), trace.whole_examples
        if headline != AGREEMENT:
            shares = matches(trace, trace.labels, table, predictions) / len(trace)
        return [percentiles(rng.binomial(texts, share, resamples) / texts) for share in shares]
    if trace.tagged is not None:
        return [
            percentiles(resample_spans(span_counts(trace, taken), resamples, rng))
            for taken in tags_taken(trace, table, output)
        ]
    resample = resample_counts if countable else resample_rows
    return [
        percentiles(resample(headline, trace, taken, resamples, rng))
        for taken in predictions_taken(table, predictions)
    ]


def shares_that_agree(trace: Trace, table: ExitTable, predictions: Array) -> Array:
    """(thresholds,) the share of examples whose prediction is the reference's; of texts, in all of their windows."""
    if not trace.problem.of_tokens:
        return matches(trace, trace.reference_predictions(), table, predictions) / len(trace)
    same = agreement_of_exits(trace, predictions)
    shares = [trace.by_text(taken, np.logical_and).mean() for taken in predictions_taken(table, same)]
    return np.array(shares)


def agreement_of_exits(trace: Trace, predictions: Array) -> Array:
    """(exits, examples) whether each exit's prediction is the reference's, in all words of a text."""
    reference, words = trace.reference_predictions(), trace.words_of_examples
    if words is None:
        return trace.problem.agree(predictions, reference)
    return np.stack([words.total(of_exit != reference) == 0 for of_exit in predictions])


def tags_taken(trace: Trace, table: ExitTable, output: RuleOutput) -> Iterator[Array]:
    """For each threshold, (labelled tokens,) the tags of the exit that each text takes."""
    assert output.tags is not None
    assert trace.tagged is not None
    tokens = np.arange(output.tags.shape[1])
    example = Lists.consecutive(trace.sizes).numbers[trace.tagged]
    for index in range(len(table.thresholds)):
        yield output.tags[table.exits(index)[example], tokens]


def span_counts(trace: Trace, tags: Array) -> Array:
    """(texts, 3) how many spans the labels have, how many the tags (labelled tokens,), and how many both."""
    assert trace.labels is not None
    texts = trace.text_numbers[Lists.consecutive(trace.sizes).numbers[trace.tagged]]
    begins = begin_texts(texts)
    expected, predicted = (
        trace.scheme.spans(values, begins) for values in (trace.labels[trace.tagged], tags)
    )
    both = expected[are_among(expected, predicted)]
    number = trace.whole_examples
    return np.column_stack(
        [np.bincount(texts[rows[:, 0]], minlength=number) for rows in (expected, predicted, both)]
    )


def entity_f1(counts: Array) -> Array:
    """(...) from the numbers (..., 3) of `span_counts`."""
    return divide(2 * counts[..., 2], counts[..., 0] + counts[..., 1])


def resample_spans(counts: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) F1 of texts drawn with replacement."""
    times = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=resamples)
    return entity_f1(times @ counts)


def from_counts(trace: Trace, metrics: list[str]) -> bool:
    """Whether counts by class are enough to compute these metrics."""
    return trace.problem == SINGLE_LABEL and COUNT_METRICS.keys() >= set(metrics)


def class_counts(trace: Trace, table: ExitTable, predictions: Array) -> "Counts":
    """(thresholds, classes)"""
    labels, classes = np.asarray(trace.labels), trace.logits.shape[-1]
    wrong_right = table.counts(
        lambda exit: 2 * predictions[exit] + (predictions[exit] == labels), 2 * classes
    ).reshape(-1, classes, 2)
    return Counts(
        label=np.broadcast_to(np.bincount(labels, minlength=classes), wrong_right.shape[:2]),
        predicted=wrong_right.sum(-1),
        both=wrong_right[..., 1],
    )


def matches(trace: Trace, truth: Any, table: ExitTable, predictions: Array) -> Array:
    """(thresholds,) how many predictions equal the truth, in every label if there are several."""
    return table.counts(lambda exit: trace.problem.agree(predictions[exit], truth).astype(np.int64), 2)[:, 1]


def predictions_taken(table: ExitTable, predictions: Array) -> Iterator[Array]:
    """For each threshold, the prediction of the exit that each example takes."""
    examples = np.arange(predictions.shape[1])
    for index in range(len(table.thresholds)):
        yield predictions[table.exits(index), examples]


def resample_counts(metric: str, trace: Trace, taken: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) scores. Drawing examples with replacement is a multinomial draw of (label, prediction) pairs."""
    classes = trace.logits.shape[-1]
    pairs, times = np.unique(np.asarray(trace.labels) * classes + taken, return_counts=True)
    drawn = rng.multinomial(len(taken), times / len(taken), size=resamples)
    label, predicted = pairs // classes, pairs % classes

    def by_class(of: Array, where: Any = slice(None)) -> Array:
        total = np.zeros((classes, resamples), np.int64)
        np.add.at(total, of[where], drawn.T[where])
        return total.T

    counts = Counts(by_class(label), by_class(predicted), by_class(label, label == predicted))
    return COUNT_METRICS[metric](counts)


def resample_rows(metric: str, trace: Trace, taken: Array, resamples: int, rng: Any) -> Array:
    """(resamples,) scores of examples drawn with replacement."""
    labels = np.asarray(trace.labels)
    draws = (rng.integers(len(taken), size=len(taken)) for _ in range(resamples))
    return np.array([compute([metric], labels[rows], taken[rows])[metric] for rows in draws])


def percentiles(scores: Array) -> Interval:
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


def measure(policy: Policy, trace: Trace) -> dict[str, Any]:
    """Mean layer and scores of a policy, and the scores of full depth; no scores without labels."""
    trace = trace.decided()
    decision = policy.decide_trace(trace)
    return {
        "examples": trace.whole_examples,
        "mean_layer": float(np.asarray(trace.layers)[decision.exits].mean()),
        "layers": trace.layers[-1],
        "scores": score(trace, decision.logits),
        "full_depth": score(trace, trace.logits[:, -1]),
    }


@dataclass(frozen=True)
class Counts:
    """How often each class was the label, the prediction, and both: (..., classes). Scores are (...)."""

    label: Array
    predicted: Array
    both: Array

    @property
    def examples(self) -> Array:
        return np.asarray(self.label.sum(-1))


def acc(counts: Counts) -> Array:
    return divide(counts.both.sum(-1), counts.examples)


def f1(counts: Counts) -> Array:
    return f1_by_class(counts)[..., 1]


def acc_and_f1(counts: Counts) -> Array:
    return (acc(counts) + f1(counts)) / 2


def macro_f1(counts: Counts) -> Array:
    occurs = (counts.label + counts.predicted) > 0
    return divide((f1_by_class(counts) * occurs).sum(-1), occurs.sum(-1))


def mcc(counts: Counts) -> Array:
    """Matthews' correlation coefficient, for any number of classes (Gorodkin 2004)."""
    examples = counts.examples[..., None]
    # fractions, because products of integer counts would overflow
    label, predicted, both = (
        divide(number, examples) for number in (counts.label, counts.predicted, counts.both)
    )
    covariance = both.sum(-1) - (label * predicted).sum(-1)
    spread = (label * (1 - label)).sum(-1) * (predicted * (1 - predicted)).sum(-1)
    return divide(covariance, np.sqrt(spread))


def f1_by_class(counts: Counts) -> Array:
    return divide(2 * counts.both, counts.label + counts.predicted)


def divide(part: Array, whole: Array) -> Array:
    """The quotient, 0 where the divisor is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


COUNT_METRICS: Mapping[str, Callable[[Counts], Array]] = {
    "acc": acc,
    "micro_f1": acc,  # with one label per example, each wrong prediction is one false negative and one false positive
    "f1": f1,
    "acc_and_f1": acc_and_f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
}
