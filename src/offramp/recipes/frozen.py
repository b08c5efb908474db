"""Frozen: heads for a model that stays as it is, taught by its last exit.

*Relation*: as `fastbert` without its first phase, but on standardized features, with labels where there are any, and
with text that has none. The predictions of the last exit do not change.
"""

from offramp.recipes.base import Recipe, head_phase


def frozen(
    epochs: float = 10.0, rate: float = 1e-3, temperature: float = 2.0, label_weight: float = 0.5
) -> Recipe:
    """`rate` is the learning rate of the heads; `label_weight` is 0 to learn from the last exit alone."""
    return Recipe("frozen", (head_phase(epochs, rate, temperature, label_weight),))
