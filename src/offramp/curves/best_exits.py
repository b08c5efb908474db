"""The best exit for each example, chosen with knowledge of the labels: where the oracle leaves."""

import numpy as np

from offramp.criteria.base import finite_rows
from offramp.problems import MULTI_LABEL, Array, decode
from offramp.trace import Trace


def best_exits(trace: Trace, metric: str) -> Array:
    """(examples,) exits that score highest by a metric, and among those the earliest.

    No choice of exits beats them by accuracy or micro-F1, nor with two classes by F1, macro-F1 or Matthews'
    correlation. For macro-F1 of many labels, and for macro-F1 and Matthews' correlation of more than two classes,
    they are the best for micro-F1, which is close to the best but not a bound.
    """
    predictions = decode(trace.logits, trace.problem_type)  # (examples, exits) or (examples, exits, labels)
    labels = np.asarray(trace.labels)[:, None]
    usable = finite_rows(trace.logits)  # no rule leaves where logits are not finite,
    usable[:, -1] = True  # except at the last exit
    if trace.problem_type == MULTI_LABEL and metric != "acc":
        false_negatives, false_positives = (labels > predictions).sum(-1), (predictions > labels).sum(-1)
        return best_for_micro_f1(false_negatives, false_positives, usable, positives=int(labels.sum()))
    wrong = predictions != labels
    wrong = wrong.any(-1) if wrong.ndim == 3 else wrong
    return np.asarray((wrong | ~usable).argmin(1))


def best_for_micro_f1(false_negatives: Array, false_positives: Array, usable: Array, positives: int) -> Array:
    """The exits of the highest micro-F1, by Dinkelbach's method. All arrays are (examples, exits).

    F1 >= f means 2 TP >= f (2 TP + FN + FP): for a given f, a sum over examples, each of which has its own best
    exit. The F1 of these exits is the next f, until it no longer grows.
    """
    examples, f1, best = np.arange(len(usable)), 0.0, -1.0
    while f1 > best:
        best = f1
        exits = np.where(usable, (2 - f1) * false_negatives + f1 * false_positives, np.inf).argmin(1)
        missed, extra = (each[examples, exits].sum() for each in (false_negatives, false_positives))
        hits = positives - missed
        f1 = 2 * hits / max(2 * hits + missed + extra, 1)
    return np.asarray(exits)
