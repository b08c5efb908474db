"""ELBERT: all exits together, the sum of their losses, equal or by weights that are learned.

*Reference*: Xie et al. 2021, arXiv:2107.00175.
*Relation*: as `pabee`, but the weights are found in training: exits worse than the last one lose weight. They
are parameters of the model, with a learning rate of their own, and are saved with it.
"""

from offramp import losses
from offramp.recipes.base import Phase, Recipe, choose


def elbert(weights: str = "learned", rate: float = 1e-2) -> Recipe:
    """`weights` is "learned" or "equal"; `rate` is the learning rate of learned ones."""
    choose("weights", weights, ("learned", "equal"))
    if weights == "equal":
        return Recipe("elbert", (Phase(losses.total),))
    phase = Phase(losses.learned, learning_rates={"exit_weights": rate})
    return Recipe("elbert", (phase,), needs=("weights",))
