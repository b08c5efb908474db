"""Rules that learn, fitted to a trace."""

from dataclasses import replace

import numpy as np

from offramp.policy import Policy
from offramp.rules.agreement import Agreement
from offramp.trace import Trace

MOST = 20_000
"""The most examples that a rule is fitted on: it has few coefficients, and more would only take longer."""


def fit_rule(policy: Policy, trace: Trace, tolerance: float | None = None) -> Policy:
    """The policy with its rule fitted to a trace; unchanged if the rule does not learn or is already fitted.

    `tolerance` is for regression, and for a rule that has none of its own.
    """
    if policy.rule.is_fitted:
        return policy
    assert isinstance(policy.rule, Agreement)  # the only rule that learns
    some = trace[:: max(1, -(-len(trace) // MOST))]
    return replace(policy, rule=Agreement.fit(some, policy.rule.tolerance or tolerance))


def default_tolerance(trace: Trace) -> float:
    """In regression, a tenth of the standard deviation of the predictions, with two digits."""
    values = trace.logits[:, -1]
    finite = np.isfinite(values)
    return float(f"{np.std(values[finite]) / 10:.2g}") if finite.any() else 0.0
