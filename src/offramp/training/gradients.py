"""How recipes change gradients: equilibrium (ElasticBERT), scaling and projection (RomeBERT)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offramp.models.exit_model import ExitModel, GradientHook


class ScaleGradient(torch.autograd.Function):
    """The identity, with its gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scale_gradient(value: Tensor, factor: float) -> Tensor:
    result: Tensor = ScaleGradient.apply(value, factor)  # type: ignore[no-untyped-call]
    return result


def equilibrium(active: Sequence[bool]) -> GradientHook:
    """Each layer gets the mean, not the sum, of the gradients of the active exits above it (ElasticBERT).

    Heads keep their full gradient. Inactive exits leave gradients unchanged.
    """
    last = len(active) - 1
    above = [sum(active[exit:]) for exit in range(last + 1)]  # active exits from this one on

    def hook(exit: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if not active[exit]:
            return hidden, hidden
        hidden = scale_gradient(hidden, 1 / above[exit])
        return hidden, scale_gradient(hidden, float(above[exit] - 1)) if exit < last else hidden

    return hook


def scale_by_depth(logits: Tensor) -> Tensor:
    """Divides the gradient of exit i of n (from 0) by n - i, for head and backbone (RomeBERT's `ge`)."""
    exits = logits.shape[1]
    scaled = [scale_gradient(logits[:, exit], 1 / (exits - exit)) for exit in range(exits)]
    return torch.stack(scaled, dim=1)


def remove_conflict(total: Sequence[Tensor], anchor: Sequence[Tensor]) -> list[Tensor]:
    """The total gradient without the part of the other losses that opposes the anchor (RomeBERT).

    All tensors are taken as one long vector. With a = anchor and b = total - a, b loses its component along a
    if <a, b> is negative: total - min(<b, a> / <a, a>, 0) a.
    """
    size = sum((a * a).sum() for a in anchor)
    along = sum((t * a).sum() for t, a in zip(total, anchor, strict=True)) - size
    pull = torch.as_tensor(along / size).clamp(max=0).nan_to_num(nan=0.0, neginf=0.0)
    return [t - pull * a for t, a in zip(total, anchor, strict=True)]


def projected_parameters(model: ExitModel) -> list[torch.nn.Parameter]:
    """The parameters whose gradients are projected: the matrices of the layers up to the last inner exit.

    Layers above it are used by the last exit only, unless layers share their weights. Norms and biases keep the
    plain gradient.
    """
    layers = list(model.adapter.layers(model.backbone))
    inner = [0, *model.config.exits[:-1]][-1]
    shared = layers if len(layers) < model.config.num_layers else layers[:inner]
    return [p for layer in shared for p in layer.parameters() if p.ndim > 1 and p.requires_grad]
