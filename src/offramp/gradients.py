"""What recipes do to gradients besides following them: equilibrium, scaling, conflict projection."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offramp.model import ExitModel, Tap


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scaled(value: Tensor, factor: float) -> Tensor:
    result: Tensor = Scaled.apply(value, factor)  # type: ignore[no-untyped-call]
    return result


def equilibrium(active: Sequence[bool]) -> Tap:
    """Each layer sees the mean, not the sum, of the gradients of the active exits above it (ElasticBERT).

    Heads keep their full gradient. Exits that are not active pass everything on.
    """
    last = len(active) - 1
    above = [sum(active[exit:]) for exit in range(last + 1)]  # active exits from here on, this one included

    def tap(exit: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if not active[exit]:
            return hidden, hidden
        hidden = scaled(hidden, 1 / above[exit])
        return hidden, scaled(hidden, float(above[exit] - 1)) if exit < last else hidden

    return tap


def by_depth(logits: Tensor) -> Tensor:
    """Gradients of exit i of n, from 0, are divided by n - i, head and backbone alike (RomeBERT's `ge`)."""
    exits = logits.shape[1]
    factors = [scaled(logits[:, exit], 1 / (exits - exit)) for exit in range(exits)]
    return torch.stack(factors, dim=1)


def without_conflict(total: Sequence[Tensor], anchor: Sequence[Tensor]) -> list[Tensor]:
    """The total gradient, less what pulls the other losses against the anchor (RomeBERT).

    With b = total - anchor and both taken as one long vector, b loses its component along the anchor where the
    two point apart: total - min(<b, a> / <a, a>, 0) a.
    """
    size = sum((a * a).sum() for a in anchor)
    along = sum((t * a).sum() for t, a in zip(total, anchor, strict=True)) - size
    pull = torch.as_tensor(along / size).clamp(max=0).nan_to_num(nan=0.0, neginf=0.0)
    return [t - pull * a for t, a in zip(total, anchor, strict=True)]


def conflicting(model: ExitModel) -> list[torch.nn.Parameter]:
    """The weights over which losses are kept from conflict: the matrices of the layers below the last inner exit.

    Layers above it serve the last exit alone, and norms and biases follow the plain sum. Where layers share
    their weights, none belongs to the last exit alone.
    """
    layers = list(model.adapter.layers(model.backbone))
    inner = [0, *model.config.exits[:-1]][-1]
    shared = layers if len(layers) < model.config.num_layers else layers[:inner]
    return [p for layer in shared for p in layer.parameters() if p.ndim > 1 and p.requires_grad]
