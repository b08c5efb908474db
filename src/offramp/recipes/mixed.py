"""Mixed: fine-tune the backbone first, then train everything with the fine-tuned model as teacher.

*Reference*: the mixed regime of Kubaty et al. 2025, arXiv:2407.14320 (backbone first, then all exits), with
distillation from the first phase as in `fastbert` and gradients in equilibrium as in `elasticbert`.
*Relation*: as `elasticbert` after `final`; the frozen teacher keeps the last exit where fine-tuning left it and lets
text without labels be used. A last phase trains the heads alone, on stored features.
"""

from functools import partial

from offramp import losses
from offramp.recipes.base import Phase, Recipe, head_phase


def mixed(
    fine_tune: bool = True,
    temperature: float = 2.0,
    label_weight: float = 0.5,
    head_epochs: float = 10.0,
    head_rate: float = 1e-3,
) -> Recipe:
    """`fine_tune=False` leaves out the first phase, for a fine-tuned model; `head_epochs=0` leaves out the last."""
    taught = partial(losses.taught, temperature=temperature, label_weight=label_weight)
    first = (Phase(losses.final, trainable="final"),) if fine_tune else ()
    last = (head_phase(head_epochs, head_rate, temperature, label_weight),) if head_epochs else ()
    everything = Phase(
        taught,
        gradients="equilibrium",
        frozen_teacher=True,
        unlabelled=True,
        needs_labels=False,
    )
    return Recipe("mixed", (*first, everything, *last))
