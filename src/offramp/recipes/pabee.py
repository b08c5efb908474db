"""PABEE: all exits together, the mean of their losses weighted by exit number.

*Reference*: Zhou et al. 2020, arXiv:2006.04152.
*Relation*: as `elbert`, but with fixed weights that favour deeper exits.
"""

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def pabee() -> Recipe:
    return Recipe("pabee", (Phase(losses.index_weighted),))
