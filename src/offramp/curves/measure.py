"""One policy on a trace, next to full depth."""

from typing import Any

import numpy as np

from offramp.curves.scores import AGREEMENT, metric_names
from offramp.policy import Policy
from offramp.tasks.metrics import score_logits
from offramp.trace import Trace


def measure(policy: Policy, trace: Trace) -> dict[str, Any]:
    """Mean layer and scores of a policy, and the scores of full depth; no scores without labels."""
    decision = policy.decide(trace.logits, trace.gates, trace.layers, trace.problem_type)
    metrics = [name for name in metric_names(trace) if name != AGREEMENT]
    return {
        "examples": len(trace),
        "mean_layer": float(np.asarray(trace.layers)[decision.exits].mean()),
        "layers": trace.layers[-1],
        "scores": score_logits(metrics, trace.labels, decision.logits, trace.problem_type),
        "full_depth": score_logits(metrics, trace.labels, trace.logits[:, -1], trace.problem_type),
    }
