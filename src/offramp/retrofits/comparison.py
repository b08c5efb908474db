"""The retrofitted model beside the original: speed and predictions."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from offramp.data.metrics import score_logits
from offramp.policy import Policy
from offramp.trace import Trace

SINGLE_TEXTS, BATCH_TEXTS = 100, 500
REPEATS = 5

Predict = Callable[[Sequence[Any]], object]
"""Of texts, pairs or queries."""


@dataclass(frozen=True)
class Speed:
    """Median milliseconds for each text."""

    one_text: float
    """One text at a time."""
    in_batches: float
    """All texts at once."""

    @property
    def cost(self) -> float:
        """One text and batches count the same."""
        return self.one_text * self.in_batches


def compare_speed(contenders: Mapping[str, Predict], texts: Sequence[Any]) -> dict[str, Speed]:
    """Times the contenders in turns, so that other load on the machine affects all of them."""
    singles, several = texts[:SINGLE_TEXTS], texts[:BATCH_TEXTS]
    one: dict[str, list[float]] = {name: [] for name in contenders}
    batch: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(REPEATS + 1):
        for name, predict in contenders.items():
            alone = sum(seconds(predict, [text]) for text in singles)
            together = seconds(predict, several)
            if repeat:  # the first is the warm-up
                one[name].append(1000 * alone / len(singles))
                batch[name].append(1000 * together / len(several))
    return {name: Speed(statistics.median(one[name]), statistics.median(batch[name])) for name in contenders}


def seconds(predict: Predict, texts: Sequence[Any]) -> float:
    begin = time.perf_counter()
    predict(texts)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Contender:
    """The original, or the retrofitted model under one policy, on the test texts."""

    name: str
    changed: int
    """Predictions that differ from the original's."""
    scores: dict[str, float]
    """By metric, if the texts have labels."""
    mean_layer: float
    milliseconds: Speed
    times_faster: Speed
    """Than the original."""


def measure_contender(
    name: str, trace: Trace, policy: Policy | None, tolerance: float | None, speed: Speed, original: Speed
) -> Contender:
    """A policy on a trace with a reference; without a policy, the reference itself."""
    assert trace.reference is not None
    logits, mean_layer, changed = trace.reference, float(trace.layers[-1]), 0
    if policy is not None:
        decision = policy.decide(trace.logits, trace.gates, trace.layers, trace.problem_type)
        logits, mean_layer = decision.logits, float(np.asarray(trace.layers)[decision.exits].mean())
        changed = int((~trace.agrees(logits, tolerance)).sum())
    scores = score_logits(trace.metrics, trace.labels, logits, trace.problem_type)
    times = Speed(original.one_text / speed.one_text, original.in_batches / speed.in_batches)
    return Contender(name, changed, scores, mean_layer, speed, times)


def interval(changed: int, texts: int) -> tuple[float, float]:
    """The 95 % interval of the share that changed (Clopper-Pearson)."""
    found: Any = binomtest(changed, texts).proportion_ci()
    return float(found.low), float(found.high)
