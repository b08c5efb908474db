"""FastBERT: fine-tune as usual, then distil the last exit into the inner exits.

*Reference*: Liu et al. 2020, arXiv:2004.02178.
*Relation*: as `deebert`, but the second phase needs no labels, so any text of the domain can be used.
"""

from functools import partial

from offramp import losses
from offramp.heads import check_choice
from offramp.recipes.base import Phase, Recipe, check_number


def fastbert(fine_tune: bool = True, temperature: float = 1.0) -> Recipe:
    """`fine_tune=False` skips the first phase, for a trained model and unlabelled text."""
    check_choice("fine_tune", fine_tune, (True, False))
    check_number("temperature", temperature, "a number above 0", lambda x: x > 0)
    first = (Phase(losses.final, trainable="final"),) if fine_tune else ()
    loss = partial(losses.distillation, temperature=temperature)
    return Recipe("fastbert", (*first, Phase(loss, trainable="exits", needs_labels=False)))
