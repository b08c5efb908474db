"""Joint: train everything together, then the heads of the inner exits alone.

*Reference*: `elasticbert` (Liu et al. 2022, arXiv:2110.07038), then a phase as in `frozen`.
*Relation*: labels train the backbone for all exits from the start; `mixed` trains it for the last exit first. The
last phase, on stored features, can also use text without labels.
"""

from offramp.recipes.base import Recipe, balanced_phase, head_phase


def joint(
    groups: int = 1,
    temperature: float = 2.0,
    label_weight: float = 0.5,
    head_epochs: float = 10.0,
    head_rate: float = 1e-3,
) -> Recipe:
    """`groups` as in `elasticbert`, the others as in `mixed`: `head_epochs=0` leaves out the last phase."""
    last = (head_phase(head_epochs, head_rate, temperature, label_weight),) if head_epochs else ()
    return Recipe("joint", (balanced_phase(groups), *last))
