"""PABEE: all exits together, the mean of their losses weighed by their number.

*Reference*: Zhou et al. 2020, arXiv:2006.04152.
*Relation*: as `elbert` with fixed weights that favour the deeper exits.
"""

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def pabee() -> Recipe:
    return Recipe("pabee", (Phase(losses.index_weighted),))
