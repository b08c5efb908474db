"""Plain fine-tuning: the last exit alone.

*Relation*: the baseline of all recipes and the first phase of `deebert` and `fastbert`. With `ExitModel.truncate`
it is ElasticBERT's static use. Inner exits are not trained.
"""

from offramp import losses
from offramp.recipes.base import Phase, Recipe


def final() -> Recipe:
    return Recipe("final", (Phase(losses.final, trainable="final"),))
