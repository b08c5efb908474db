"""Statistical guarantees about a loss: bounds on its mean, tests, and certificates. Nothing here knows exits."""

from offramp.guarantees.certificate import Certificate, Conditions, ProvenBound
from offramp.guarantees.guarantee import Guarantee
from offramp.guarantees.losses import LOSSES, Loss

__all__ = ["LOSSES", "Certificate", "Conditions", "Guarantee", "Loss", "ProvenBound"]
