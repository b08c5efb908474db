"""Exit rules. Each maps the logits so far to a readiness score.

Names are stored in policies and never change.
"""

from offramp.rules.agreement import Agreement
from offramp.rules.base import Rule
from offramp.rules.confidence import Confidence, Ensemble, Entropy, Margin, MinProbability
from offramp.rules.fixed import Gate, Layer, Never, Oracle
from offramp.rules.patience import Patience, PatienceConfidence, Window
from offramp.rules.rank import Rank

RULES: dict[str, type[Rule]] = {
    "agreement": Agreement,
    "entropy": Entropy,
    "confidence": Confidence,
    "margin": Margin,
    "min_probability": MinProbability,
    "patience": Patience,
    "window": Window,
    "patience_confidence": PatienceConfidence,
    "gate": Gate,
    "ensemble": Ensemble,
    "layer": Layer,
    "never": Never,
    "rank": Rank,
    "oracle": Oracle,
}
