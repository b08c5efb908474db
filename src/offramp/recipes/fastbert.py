"""FastBERT: fine-tune as usual, then the inner exits learn the last one's answers.

*Reference*: Liu et al. 2020, arXiv:2004.02178.
*Relation*: as `deebert`, but the second phase needs no labels, so that any text of the kind will do.
"""

from functools import partial

from offramp import losses
from offramp.recipes.base import Phase, Recipe, choose, number


def fastbert(fine_tune: bool = True, temperature: float = 1.0) -> Recipe:
    """`fine_tune=False` leaves out the first phase: for a trained model and unlabelled text."""
    choose("fine_tune", fine_tune, (True, False))
    number("temperature", temperature, "above 0", lambda x: x > 0)
    first = (Phase(losses.final, trainable="final"),) if fine_tune else ()
    loss = partial(losses.distilled, temperature=temperature)
    return Recipe("fastbert", (*first, Phase(loss, trainable="exits", needs_labels=False)))
