"""DeeBERT: fine-tune as usual, then train the inner exits with everything else frozen.

*Reference*: Xin et al. 2020, arXiv:2004.12993.
*Relation*: as `fastbert`, but the inner exits learn from labels. The last exit is exactly that of plain
fine-tuning. In the original, the frozen backbone still had dropout, and its gradients counted in the clipping norm;
here it has neither.
"""

from offramp import losses
from offramp.heads import check_choice
from offramp.recipes.base import Phase, Recipe


def deebert(fine_tune: bool = True) -> Recipe:
    """`fine_tune=False` skips the first phase, for a model whose last exit is already trained."""
    check_choice("fine_tune", fine_tune, (True, False))
    first = (Phase(losses.final, trainable="final"),) if fine_tune else ()
    return Recipe("deebert", (*first, Phase(losses.inner, trainable="exits")))
