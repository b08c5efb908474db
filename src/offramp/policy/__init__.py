"""A rule with its threshold and limits: which exit each example takes.

Live and offline decisions run the same code. The engine calls `Decider.step` as logits appear,
`Policy.decide` calls it over a whole array. A sweep of thresholds folds once (`fold`), then compares.
"""

from offramp.policy.decide import Decider, Decision, Folded, fold, reached
from offramp.policy.policy import Policy

__all__ = ["Decider", "Decision", "Folded", "Policy", "fold", "reached"]
