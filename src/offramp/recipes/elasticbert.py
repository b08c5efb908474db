"""ElasticBERT: the plain sum over all exits, with gradients in equilibrium.

*Reference*: Liu et al. 2022, arXiv:2110.07038.
*Relation*: as `elbert` with equal weights, but a layer sees the mean of the gradients of the exits above it,
so that early layers are not pulled by many losses at once.
"""

from functools import partial

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def elasticbert(groups: int = 1) -> Recipe:
    """`groups` > 1 deals the exits into groups that take turns, the last exit in each."""
    loss = partial(losses.grouped, groups=groups) if groups != 1 else losses.total
    return Recipe("elasticbert", (Phase(loss, gradients="equilibrium", groups=groups),))
