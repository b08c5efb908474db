"""What the examples of a trace lose against the reference, if they get the logits of an exit or of a policy."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from offramp.guarantees.losses import LOSSES, Reference
from offramp.lists import Lists
from offramp.problems import Array
from offramp.rules.rank import relevance
from offramp.trace import Trace


def reference_of(trace: Trace, tolerance: float | None = None, top_k: int | None = None) -> Reference:
    """What predictions on a trace are compared with; `top_k` is for lists."""
    if trace.has_lists:
        return Reference(ranks(trace, trace.reference_logits), sizes=trace.sizes, top_k=top_k)
    return Reference(
        trace.reference_predictions(),
        None if trace.problem.of_tokens else trace.labels,
        trace.problem,
        tolerance,
        words=trace.words_of_examples,
    )


def losses_on(
    trace: Trace,
    logits: Array,
    risks: Iterable[str],
    tolerance: float | None = None,
    top_k: int | None = None,
) -> dict[str, Array]:
    """By risk, what each example loses: (examples, ..., outputs) logits -> (..., examples); of lists,
    (documents, outputs) -> (lists,)."""
    reference, losses = reference_of(trace, tolerance, top_k), {}
    for risk in risks:
        loss, expected = LOSSES[risk], reference
        if trace.has_lists:
            predictions = ranks(trace, logits)
        elif loss.compares == "scores" and trace.problem.has_classes:
            predictions = trace.problem.probabilities(logits)
            expected = replace(reference, predictions=trace.problem.probabilities(trace.reference_logits))
        else:
            predictions = trace.decode(logits)
        by_exit = not trace.has_lists and logits.ndim > 2
        losses[risk] = loss.values(np.moveaxis(predictions, 1, 0) if by_exit else predictions, expected)
    return losses


def mean_losses(
    trace: Trace,
    logits: Array,
    risks: Iterable[str],
    tolerance: float | None = None,
    top_k: int | None = None,
) -> dict[str, float]:
    """By risk, the mean loss of the examples that count; 0 if none do."""
    reference, means = reference_of(trace, tolerance, top_k), {}
    if reference.words is not None:  # of texts, not of their windows
        words = Lists.consecutive(trace.by_text(reference.words.sizes, np.add))
        predictions, whole = trace.decode(logits), replace(reference, words=words)
        return {risk: float(LOSSES[risk].values(predictions, whole).mean()) for risk in risks}
    for risk, losses in losses_on(trace, logits, risks, tolerance, top_k).items():
        among = LOSSES[risk].among
        counted = losses if among is None else losses[among(reference)]
        means[risk] = float(counted.mean()) if len(counted) else 0.0
    return means


def ranks(trace: Trace, logits: Array) -> Array:
    """(lists, longest) the ranks of documents, from their logits (documents, outputs)."""
    return Lists.consecutive(trace.sizes).ranks(relevance(logits))
