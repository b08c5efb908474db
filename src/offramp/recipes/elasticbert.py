"""ElasticBERT: the sum over all exits, with gradient equilibrium.

*Reference*: Liu et al. 2022, arXiv:2110.07038.
*Relation*: as `elbert` with equal weights, but a layer gets the mean of the gradients of the exits above it,
so that early layers do not get larger gradients than late ones.
"""

from functools import partial

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def elasticbert(groups: int = 1) -> Recipe:
    """`groups` > 1 splits the exits into groups that are trained in turn, each with the last exit."""
    loss = partial(losses.grouped, groups=groups) if groups != 1 else losses.total
    return Recipe("elasticbert", (Phase(loss, gradients="equilibrium", groups=groups),))
