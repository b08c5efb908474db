"""ElasticBERT: the sum over all exits, with gradient equilibrium.

*Reference*: Liu et al. 2022, arXiv:2110.07038.
*Relation*: as `elbert` with equal weights, but a layer gets the mean of the gradients of the exits above it,
so that early layers do not get larger gradients than late ones.
"""

from offramp.recipes.base import Recipe, balanced_phase


def elasticbert(groups: int = 1) -> Recipe:
    """`groups` > 1 splits the exits into groups that are trained in turn, each with the last exit."""
    return Recipe("elasticbert", (balanced_phase(groups),))
