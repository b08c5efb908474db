"""Plain fine-tuning: the last exit alone.

*Relation*: the baseline of every other recipe, the first phase of `deebert` and `fastbert`, and with
`ExitModel.truncate` ElasticBERT's static use. Inner exits are left as they are.
"""

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def final() -> Recipe:
    return Recipe("final", (Phase(losses.final, trainable="final"),))
