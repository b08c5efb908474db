"""Frozen: heads for a model that stays as it is, taught by its last exit.

*Relation*: as `fastbert` without its first phase, but on standardised features, with labels where there are any, and
with text that has none. The predictions of the last exit do not change.
"""

from functools import partial

from offramp import losses
from offramp.recipes.base import Phase, Recipe, check_number

BATCH = 256
"""Examples per update of the heads: on stored features, small batches would only cost time."""


def frozen(
    epochs: float = 10.0, rate: float = 1e-3, temperature: float = 2.0, label_weight: float = 0.5
) -> Recipe:
    """`rate` is the learning rate of the heads; `label_weight` is 0 to learn from the last exit alone."""
    return Recipe("frozen", (head_phase(epochs, rate, temperature, label_weight),))


def head_phase(epochs: float, rate: float, temperature: float, label_weight: float) -> Phase:
    """Train the inner exits on stored features."""
    check_number("epochs", epochs, "a number above 0", lambda x: x > 0)
    check_number("rate", rate, "a number above 0", lambda x: x > 0)
    check_number("temperature", temperature, "a number above 0", lambda x: x > 0)
    check_number("label_weight", label_weight, "a number from 0 to 1", lambda x: 0 <= x <= 1)
    return Phase(
        partial(losses.taught, temperature=temperature, label_weight=label_weight),
        trainable="exits",
        epochs=epochs,
        batch_size=BATCH,
        learning_rates={"heads": rate},
        standardise=True,
        unlabelled=True,
        needs_labels=False,
    )
