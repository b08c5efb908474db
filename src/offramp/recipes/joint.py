"""Joint: train everything together, then the heads of the inner exits alone.

*Reference*: `elasticbert` (Liu et al. 2022, arXiv:2110.07038), followed by `frozen`.
*Relation*: labels train the backbone for all exits from the start, which also helps the last one; `mixed` trains it
for the last exit first. The second phase, on stored features, can also use text without labels.
"""

from offramp.recipes.base import Recipe
from offramp.recipes.elasticbert import elasticbert
from offramp.recipes.frozen import frozen


def joint(
    head_epochs: float = 10.0, head_rate: float = 1e-3, temperature: float = 2.0, label_weight: float = 0.5
) -> Recipe:
    """The options are those of `frozen`."""
    heads = frozen(head_epochs, head_rate, temperature, label_weight)
    return Recipe("joint", (*elasticbert().phases, *heads.phases))
