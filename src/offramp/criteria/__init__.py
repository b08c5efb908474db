"""When an example may leave: one rule per file, logits so far to readiness.

Names are saved in policies, so they are for life.
"""

from offramp.criteria.agreement import Agreement
from offramp.criteria.base import Criterion
from offramp.criteria.confidence import Confidence
from offramp.criteria.ensemble import Ensemble
from offramp.criteria.entropy import Entropy
from offramp.criteria.gate import Gate
from offramp.criteria.layer import Layer
from offramp.criteria.margin import Margin
from offramp.criteria.min_probability import MinProbability
from offramp.criteria.never import Never
from offramp.criteria.oracle import Oracle
from offramp.criteria.patience import Patience
from offramp.criteria.patience_confidence import PatienceConfidence
from offramp.criteria.window import Window

CRITERIA: dict[str, type[Criterion]] = {
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
    "oracle": Oracle,
}
