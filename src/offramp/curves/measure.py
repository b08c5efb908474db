"""One policy on a trace, next to full depth."""

from typing import Any

import numpy as np

from offramp.curves.scores import AGREEMENT, metric_names
from offramp.policy import Policy
from offramp.problems import decode
from offramp.tasks.metrics import compute
from offramp.trace import Trace


def measure(policy: Policy, trace: Trace) -> dict[str, Any]:
    """Mean layer and scores of a policy, and the scores of full depth; no scores without labels."""
    decision = policy.decide(trace.logits, trace.gates, trace.layers, trace.problem_type)
    metrics = [name for name in metric_names(trace) if name != AGREEMENT]

    def scores(logits: Any) -> dict[str, float]:
        if trace.labels is None:
            return {}
        return dict(compute(metrics, trace.labels, decode(logits, trace.problem_type)))

    return {
        "examples": len(trace),
        "mean_layer": float(np.asarray(trace.layers)[decision.exits].mean()),
        "layers": trace.layers[-1],
        "scores": scores(decision.logits),
        "full_depth": scores(trace.logits[:, -1]),
    }
