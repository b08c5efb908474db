"""BERxiT: the last exit and all exits in turn, and a gate that learns when an exit is right.

*Reference*: Xin et al. 2021, EACL, "BERxiT: Early exiting for BERT with better fine-tuning and extension to
regression".
*Relation*: between `final` and `elbert` with equal weights; the gate, used by the rule of that name, also serves
regression, where entropy means nothing.
"""

from typing import Any

from torch import Tensor

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def berxit() -> Recipe:
    return Recipe("berxit", (Phase(alternating_with_gate),), needs=("gate",))


def alternating_with_gate(logits: Tensor, labels: Tensor, **more: Any) -> losses.Terms:
    return (*losses.alternating(logits, labels, **more), *losses.gate_error(logits, labels, **more))
