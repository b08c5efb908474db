"""RomeBERT: inner exits learn from labels and from the last exit, with conflicting gradients removed.

*Reference*: Geng et al. 2021, arXiv:2101.09755.
*Relation*: as `fastbert`, but in one phase that also trains the backbone, which is why gradients are projected.
"""

from functools import partial

from offramp import losses
from offramp.heads import check_choice
from offramp.recipes.base import Phase, Recipe, check_number


def romebert(
    kind: str = "raw",
    gamma: float = 0.9,
    temperature: float = 3.0,
    beta: float = 0.1,
    span: int = 2,
    gradients: str = "projected",
    anchor: str = "task",
    momentum: float | None = None,
) -> Recipe:
    """Self-distillation ("raw", "ta", "group" or "bidir") with or without gradient regularization.

    Args:
        kind: the teacher of an inner exit, see `losses.self_distillation`.
        gamma: weight of the teacher; the labels have weight 1 - gamma.
        temperature: of the distillation.
        beta: weight of the labels with kind "group".
        span: number of neighbouring exits that are summed with kind "group".
        gradients: "projected", "plain" or "by_depth".
        anchor: whose gradient the projection keeps: "final", "inner", or the original's choice for the "task".
        momentum: decay of a momentum teacher, 0.9999 in the original; None for no such teacher.
    """
    check_choice("kind", kind, ("raw", "ta", "group", "bidir"))
    check_number("gamma", gamma, "a number from 0 to 1", lambda x: 0 <= x <= 1)
    check_number("temperature", temperature, "a number above 0", lambda x: x > 0)
    check_number("beta", beta, "a number of 0 or more", lambda x: x >= 0)
    check_number("span", span, "a whole number of 1 or more", lambda x: isinstance(x, int) and x >= 1)
    loss = partial(
        losses.self_distillation, kind=kind, gamma=gamma, temperature=temperature, beta=beta, span=span
    )
    return Recipe("romebert", (Phase(loss, gradients=gradients, anchor=anchor, momentum=momentum),))
