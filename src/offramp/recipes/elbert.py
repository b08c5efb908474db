"""ELBERT: all exits together, the sum of their losses with learned or equal weights.

*Reference*: Xie et al. 2021, arXiv:2107.00175.
*Relation*: as `pabee`, but the weights are learned: exits worse than the last one lose weight. They are
parameters of the model, with a separate learning rate.
"""

from offramp import losses
from offramp.heads import check_choice
from offramp.recipes.base import Phase, Recipe


def elbert(weights: str = "learned", rate: float = 1e-2) -> Recipe:
    """`weights` is "learned" or "equal"; `rate` is the learning rate of learned weights."""
    check_choice("weights", weights, ("learned", "equal"))
    if weights == "equal":
        return Recipe("elbert", (Phase(losses.total),))
    phase = Phase(losses.learned_weighted, learning_rates={"exit_weights": rate})
    return Recipe("elbert", (phase,), needs=("weights",))
