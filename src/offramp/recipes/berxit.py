"""BERxiT: alternates between the last exit and all exits, and trains a gate that predicts correctness.

*Reference*: Xin et al. 2021, EACL, "BERxiT: Early exiting for BERT with better fine-tuning and extension to
regression".
*Relation*: alternates between `final` and `elbert` with equal weights. The rule `gate` uses the gate, also for
regression, where entropy is not defined.
"""

from typing import Any

from torch import Tensor

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def berxit() -> Recipe:
    return Recipe("berxit", (Phase(alternating_with_gate),), needs=("gate",))


def alternating_with_gate(logits: Tensor, labels: Tensor, **more: Any) -> losses.Terms:
    return (*losses.alternating(logits, labels, **more), *losses.gate_loss(logits, labels, **more))
