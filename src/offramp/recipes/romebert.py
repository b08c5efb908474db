"""RomeBERT: inner exits learn from the labels and from the last exit, without pulling against it.

*Reference*: Geng et al. 2021, arXiv:2101.09755.
*Relation*: as `fastbert`, but in one phase with the backbone learning too, hence the projection of conflicting
gradients.
"""

from functools import partial

from offramp import losses
from offramp.recipes.base import Phase, Recipe, choose, number


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
    """Self-distillation ("raw", "ta", "group" or "bidir") with or without gradient regularisation.

    Args:
        kind: who teaches an inner exit, see `losses.self_distilled`.
        gamma: how much an inner exit listens to its teacher rather than to the labels.
        temperature: of the teacher and the taught.
        beta: weight of the labels, for kind "group".
        span: how many neighbouring exits are summed, for kind "group".
        gradients: "projected", "plain", or "by_depth".
        anchor: whose gradient the projection leaves alone: by "task", "final" or "inner".
        momentum: keeps a slow copy of the model as the teacher, 0.9999 in the original; None for none.
    """
    choose("kind", kind, ("raw", "ta", "group", "bidir"))
    number("gamma", gamma, "from 0 to 1", lambda x: 0 <= x <= 1)
    number("temperature", temperature, "above 0", lambda x: x > 0)
    number("beta", beta, "from 0", lambda x: x >= 0)
    number("span", span, "whole, from 1", lambda x: isinstance(x, int) and x >= 1)
    loss = partial(
        losses.self_distilled, kind=kind, gamma=gamma, temperature=temperature, beta=beta, span=span
    )
    return Recipe("romebert", (Phase(loss, gradients=gradients, anchor=anchor, momentum=momentum),))
