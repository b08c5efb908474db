"""Losses: what each example loses against a reference, from 0 to 1, and how a certificate words a bound on the mean.

Names are stored in certificates.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offramp.lists import Lists
from offramp.problems import SINGLE_LABEL, Array, Problem


@dataclass(frozen=True)
class Reference:
    """What predictions are compared with."""

    predictions: Array
    """(examples,) classes or numbers; (examples, labels) 0 or 1; (lists, longest) ranks of documents, from 0."""
    labels: Array | None = None
    """The correct ones, of the same shape."""
    problem: Problem = SINGLE_LABEL
    """The meaning of the predictions."""
    tolerance: float | None = None
    """Numbers no further apart than this count as equal."""
    sizes: Array | None = None
    """(lists,) the number of documents in each."""
    words: Lists | None = None
    """Which predictions belong to which text, if they are of its words: numbers that say which span a word is in, 0
    for none."""
    top_k: Array | int | None = None
    """How many documents of a list count, for all lists or for each."""


@dataclass(frozen=True)
class Loss:
    """A loss of each example, and the words for a bound on its mean."""

    values: Callable[[Array, Reference], Array]
    """(..., examples) from predictions (..., *shape of the reference)."""
    summary: str
    """The claim in short. The placeholders here and below are fields of a certificate."""
    statement: str
    """The exact claim; `bounds` is the bound."""
    bound: str = "exact binomial"
    """A name in `BOUNDS`; the exact one is for losses of 0 or 1."""
    among: Callable[[Reference], Array] | None = None
    """(examples,) the examples that count, where those are not all."""
    examples: str = "examples"
    """The examples that count, in words."""
    compares: str = "predictions"
    """Or "scores": the reference and what is compared with it are then probabilities, or numbers."""
    yes_or_no: bool = False
    """Whether it is about decisions, 1 for yes and 0 for no; see `OperatingPoint`."""
    needs_labels: bool = False
    unit: str = "example"
    """What is counted: an example, a text whose words are tagged, or a query with its documents."""
    units: str = "examples"
    within: str = ""
    """Added to the summary if there is a tolerance."""


def changed(predictions: Array, reference: Reference) -> Array:
    """1 if the prediction is not the reference's; of several labels, if any is not."""
    agree = reference.problem.agree(predictions, reference.predictions, reference.tolerance)
    return (~agree).astype(np.float64)


def changed_spans(predictions: Array, reference: Reference) -> Array:
    """1 if any span of the text begins or ends elsewhere, has another label, or is not there."""
    return (in_texts(predictions != reference.predictions, reference) > 0).astype(np.float64)


def missed_words(predictions: Array, reference: Reference) -> Array:
    """1 if any word of the text is in a span of the reference and in none now."""
    return (in_texts((predictions == 0) & (reference.predictions > 0), reference) > 0).astype(np.float64)


def missed_share(predictions: Array, reference: Reference) -> Array:
    """The share of the words in spans of the reference that are in none now; 0 if there were no such words."""
    missed = in_texts((predictions == 0) & (reference.predictions > 0), reference)
    return np.asarray(missed / np.maximum(in_texts(reference.predictions > 0, reference), 1))


def in_texts(holds: Array, reference: Reference) -> Array:
    """(..., texts) the number of words of each for which something holds, given for all words (..., words)."""
    words = reference.words
    assert words is not None
    return np.stack([words.total(row) for row in np.atleast_2d(holds)]).reshape(*holds.shape[:-1], -1)


def lost(predictions: Array, reference: Reference) -> Array:
    """1 where the reference is correct and the prediction is not."""
    assert reference.labels is not None
    same, tolerance = reference.problem.same, reference.tolerance
    was_correct = same(reference.predictions, reference.labels, tolerance)
    return np.asarray(was_correct & ~same(predictions, reference.labels, tolerance), np.float64)


def lost_labels(predictions: Array, reference: Reference) -> Array:
    """The share of the labels that are lost."""
    return np.asarray(lost(predictions, reference).mean(-1))


def accuracy_drop(predictions: Array, reference: Reference) -> Array:
    """1 where a correct prediction is lost, -1 where one is gained; of several labels, the mean."""
    labels, problem, tolerance = reference.labels, reference.problem, reference.tolerance
    assert labels is not None
    was_correct, is_correct = (
        problem.same(values, labels, tolerance).astype(np.float64)
        for values in (reference.predictions, predictions)
    )
    net = was_correct - is_correct
    return np.asarray(net.mean(-1) if problem.multi_label else net)


def missed(predictions: Array, reference: Reference) -> Array:
    """1 where the reference says yes and the prediction is no; of several labels, to any."""
    return any_label((reference.predictions == 1) & (predictions == 0), reference).astype(np.float64)


def false_alarm(predictions: Array, reference: Reference) -> Array:
    """1 where the reference says no and the prediction is yes; of several labels, to any."""
    return any_label((reference.predictions == 0) & (predictions == 1), reference).astype(np.float64)


def says_yes(reference: Reference) -> Array:
    return any_label(reference.predictions == 1, reference)


def says_no(reference: Reference) -> Array:
    return any_label(reference.predictions == 0, reference)


def any_label(holds: Array, reference: Reference) -> Array:
    return np.asarray(holds.any(-1) if reference.problem.multi_label else holds)


def score_moved(scores: Array, reference: Reference) -> Array:
    """1 if any score is further from the reference's than the tolerance."""
    far = np.abs(scores - reference.predictions) > (reference.tolerance or 0.0)
    return np.asarray(far.any(-1) if reference.predictions.ndim > 1 else far, np.float64)


def overlap(predictions: Array, reference: Reference) -> Array:
    """The share of the reference's top k that is not in the predicted top k."""
    counted = documents_that_count(reference)
    both = (predictions < counted) & (reference.predictions < counted)
    return np.asarray(1 - both.sum(-1) / counted[:, 0])


def ndcg(predictions: Array, reference: Reference) -> Array:
    """1 - nDCG@k, with gains from k for the reference's best document to 1 for its k-th."""
    counted = documents_that_count(reference)
    gains = np.maximum(counted - reference.predictions, 0)

    def dcg(order: Array) -> Array:
        return np.asarray((gains * (order < counted) / np.log2(order + 2)).sum(-1))

    return np.asarray(1 - dcg(predictions) / dcg(reference.predictions)).clip(0, 1)


def documents_that_count(reference: Reference) -> Array:
    """(lists, 1) k, or all documents of a list that has fewer."""
    assert reference.sizes is not None
    assert reference.top_k is not None
    return np.minimum(reference.top_k, reference.sizes)[:, None]


LOSSES = {
    "changed": Loss(
        changed,
        summary="at most {bounds} of {predictions} differ from {reference}",
        within=" by more than {tolerance:g}",
        statement="at most {bounds} get {a_prediction} that differs from {reference}",
    ),
    "accuracy": Loss(
        lost,
        summary="at most {bounds} of examples lose a correct prediction",
        within=" (correct within {tolerance:g})",
        statement="at most {bounds} lose a correct prediction of {reference}",
        needs_labels=True,
    ),
    "label_accuracy": Loss(
        lost_labels,
        summary="at most {bounds} of labels lose a correct prediction",
        statement="the share of labels that lose a correct prediction of {reference} is at most {bounds} on average",
        bound="betting",
        needs_labels=True,
    ),
    "accuracy_drop": Loss(
        accuracy_drop,
        summary="accuracy falls by at most {bounds} of all examples against {reference}",
        within=" (correct within {tolerance:g})",
        statement="the share of correct predictions is at most {bounds} below that of {reference}",
        bound="paired betting",
        needs_labels=True,
    ),
    "changed_spans": Loss(
        changed_spans,
        summary="at most {bounds} of texts get spans that differ from {reference}'s",
        statement="at most {bounds} get a span whose start, end or label differs from {reference}'s, or lack one",
        examples="texts",
        unit="text",
        units="texts",
    ),
    "missed_words": Loss(
        missed_words,
        summary="at most {bounds} of texts have a word that {reference} marks and that is no longer marked",
        statement="at most {bounds} have a word that is in a span of {reference} and in no span now",
        examples="texts",
        unit="text",
        units="texts",
    ),
    "missed_share": Loss(
        missed_share,
        summary="at most {bounds} of the words that {reference} marks are no longer marked, on average over texts",
        statement="the share of a text's words in spans of {reference} that are in no span now is at most {bounds} "
        "on average",
        bound="betting",
        examples="texts",
        unit="text",
        units="texts",
    ),
    "missed": Loss(
        missed,
        summary="at most {bounds} of examples that {reference} says yes to lose a yes",
        statement="at most {bounds} lose a yes",
        among=says_yes,
        examples="examples that {reference} says yes to",
        yes_or_no=True,
    ),
    "false_alarm": Loss(
        false_alarm,
        summary="at most {bounds} of examples that {reference} says no to get a yes instead",
        statement="at most {bounds} get a yes instead",
        among=says_no,
        examples="examples that {reference} says no to",
        yes_or_no=True,
    ),
    "missed_of_all": Loss(
        missed,
        summary="at most {bounds} of all examples lose a yes of {reference}",
        statement="at most {bounds} lose a yes of {reference}",
        yes_or_no=True,
    ),
    "false_alarm_of_all": Loss(
        false_alarm,
        summary="at most {bounds} of all examples get a yes where {reference} says no",
        statement="at most {bounds} get a yes where {reference} says no",
        yes_or_no=True,
    ),
    "score": Loss(
        score_moved,
        summary="at most {bounds} of examples have a score that differs from {reference}'s",
        within=" by more than {tolerance:g}",
        statement="at most {bounds} have a score that differs from that of {reference}",
        compares="scores",
    ),
    "overlap": Loss(
        overlap,
        summary="at most {bounds} of the top {top_k} of {reference} are missed on average",
        statement="the share of the top {top_k} of {reference} that is missing from the top {top_k} is at most "
        "{bounds} on average",
        bound="betting",
        unit="query",
        units="queries",
    ),
    "ndcg": Loss(
        ndcg,
        summary="nDCG@{top_k} against {reference}'s order drops by at most {bounds} on average",
        statement="1 - nDCG@{top_k}, with gains from {top_k} to 1 for the top {top_k} of {reference}, is at most "
        "{bounds} on average",
        bound="betting",
        unit="query",
        units="queries",
    ),
}
"""Accuracy becomes label_accuracy in a multi-label problem; see `OF_TAGS` for taggers."""
OF_TAGS = {"changed": "changed_spans", "missed": "missed_words", "missed_share": "missed_share"}
"""The losses of a tagger, by the names that they are asked for."""
RISKS = tuple(name for name, loss in LOSSES.items() if loss.unit == "example" and name != "label_accuracy")
"""The losses of single texts, by the names that they are asked for."""
