"""Timing full depth against a policy on this machine."""

import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offramp.cli.progress import with_progress

if TYPE_CHECKING:
    from offramp.inference import Classifier
    from offramp.policy import Policy

NEVER = "never"


@dataclass(frozen=True)
class Timing:
    """One policy on some texts."""

    policy: str
    seconds: float
    """Median over the repeats."""
    texts_per_second: float
    mean_layer: float
    scores: dict[str, float]


def time_policies(
    classifier: "Classifier",
    texts: Sequence[Any],
    policy: "Policy",
    repeats: int,
    labels: Any = None,
    metrics: Sequence[str] = (),
    one_by_one: bool = False,
) -> list[Timing]:
    """Time full depth and the policy alternately, so that other load on the machine affects both.

    With labels, both are scored by the metrics.
    """
    from offramp.data.metrics import score_logits
    from offramp.policy import Policy

    policies = [Policy.parse(NEVER), policy]
    seconds: list[list[float]] = [[], []]
    decisions = [classifier.decide(texts, each) for each in policies]  # also the warm-up
    for _ in with_progress(range(repeats), "timing"):
        for which, each in enumerate(policies):
            begin = time.perf_counter()
            if one_by_one:
                for text in texts:
                    classifier.predict(text, policy=each)
            else:
                classifier.predict(texts, policy=each)
            seconds[which].append(time.perf_counter() - begin)
    layers = classifier.runtime.layers
    return [
        Timing(
            policy=str(each),
            seconds=statistics.median(times),
            texts_per_second=len(texts) / statistics.median(times),
            mean_layer=statistics.fmean(layers[exit] for exit in decision.exits),
            scores=score_logits(metrics, labels, decision.logits, classifier.runtime.problem_type),
        )
        for each, times, decision in zip(policies, seconds, decisions, strict=True)
    ]


def timing_table(rows: Sequence[Timing]) -> str:
    from offramp.reports.table import format_table, percent, short

    header = ["", *rows[0].scores, "mean layer", "seconds", "texts/s", "speed-up"]
    body = [
        [
            "full depth" if row.policy == NEVER else short(row.policy),
            *(percent(score) for score in row.scores.values()),
            f"{row.mean_layer:.2f}",
            f"{row.seconds:.2f}",
            f"{row.texts_per_second:.0f}",
            f"{rows[0].seconds / row.seconds:.2f}",
        ]
        for row in rows
    ]
    return format_table([header, *body])


def machine() -> dict[str, Any]:
    """The machine and versions that a timing belongs to."""
    import torch
    import transformers

    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
