"""DeeBERT: fine-tune as usual, then train the inner exits with everything else frozen.

*Reference*: Xin et al. 2020, arXiv:2004.12993.
*Relation*: as `fastbert`, but the inner exits learn from labels. The last exit's answers stay exactly those of plain
fine-tuning. The original left the backbone's dropout on
and its gradients in the clipping norm; here it is truly frozen.
"""

from offramp import losses
from offramp.recipes.base import Phase, Recipe, choose


def deebert(fine_tune: bool = True) -> Recipe:
    """`fine_tune=False` leaves out the first phase, for a model whose last exit is already trained."""
    choose("fine_tune", fine_tune, (True, False))
    first = (Phase(losses.final, trainable="final"),) if fine_tune else ()
    return Recipe("deebert", (*first, Phase(losses.inner, trainable="exits")))
