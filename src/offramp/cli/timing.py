"""What a policy does: on a trace, and live on this machine."""

import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offramp.classifier import Classifier
    from offramp.policy import Policy
    from offramp.trace import Trace

NEVER = "never"


def on_trace(policy: "Policy", trace: "Trace") -> dict[str, Any]:
    """Mean layer and scores of the policy, beside those of full depth."""
    import numpy as np

    from offramp.curves.scores import AGREEMENT, metric_names

    decision = policy.decide(trace.logits, trace.gates, trace.layers, trace.problem_type)
    metrics = [] if trace.labels is None else [name for name in metric_names(trace) if name != AGREEMENT]
    truth = Truth(trace.labels, trace.problem_type, metrics)
    return {
        "examples": len(trace),
        "mean_layer": float(np.asarray(trace.layers)[decision.exits].mean()),
        "layers": trace.layers[-1],
        "scores": truth.scores(decision.answers),
        "full_depth": truth.scores(trace.logits[:, -1]),
    }


@dataclass(frozen=True)
class Truth:
    """What the answers should have been, if that is known, and how they are scored."""

    labels: Any | None
    problem_type: str
    metrics: Sequence[str]

    def scores(self, logits: Any) -> dict[str, float]:
        from offramp.tasks.metrics import answers, compute

        if self.labels is None:
            return {}
        return dict(compute(list(self.metrics), self.labels, answers(logits, self.problem_type)))


@dataclass(frozen=True)
class Timed:
    """A policy at work on some texts."""

    policy: str
    seconds: float
    """Median over the repeats."""
    texts_per_second: float
    mean_layer: float
    scores: dict[str, float]


def side_by_side(
    classifier: "Classifier",
    texts: Sequence[Any],
    policy: "Policy",
    repeats: int,
    truth: Truth,
    one_by_one: bool = False,
) -> list[Timed]:
    """Full depth and the policy on the same texts, in turns, so that what else the machine does hits both."""
    from offramp.policy import Policy

    policies = [Policy.parse(NEVER), policy]
    seconds: list[list[float]] = [[], []]
    decisions = [classifier.decide(texts, each) for each in policies]  # also warms up
    for _ in range(repeats):
        for which, each in enumerate(policies):
            begin = time.perf_counter()
            if one_by_one:
                for text in texts:
                    classifier.predict(text, policy=each)
            else:
                classifier.predict(texts, policy=each)
            seconds[which].append(time.perf_counter() - begin)
    layers = classifier.stages.layers
    return [
        Timed(
            policy=str(each),
            seconds=statistics.median(times),
            texts_per_second=len(texts) / statistics.median(times),
            mean_layer=statistics.fmean(layers[exit] for exit in decision.exits),
            scores=truth.scores(decision.answers),
        )
        for each, times, decision in zip(policies, seconds, decisions, strict=True)
    ]


def timing_table(rows: Sequence[Timed]) -> str:
    from offramp.report.table import format_table, percent

    header = ["", *rows[0].scores, "mean layer", "seconds", "texts/s", "times faster"]
    body = [
        [
            "full depth" if row.policy == NEVER else row.policy,
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
    """Where something was measured."""
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
