"""Equilibrium, scaling and projection against values of the original systems."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from offramp import ExitModel
from offramp.training.gradients import equilibrium, projected_parameters, remove_conflict, scale_by_depth

HEADS = torch.tensor([1.0, 10.0, 100.0, 1000.0])


def backward(active: list[bool], bias: Tensor) -> float:
    """Four identity layers, each with a head that multiplies by 1, 10, 100, 1000: the gradient at the bottom."""
    start = torch.tensor([0.5], requires_grad=True)
    hook, hidden, loss = equilibrium(active), start, torch.tensor(0.0)
    for exit, weight in enumerate(HEADS):
        to_head, hidden = hook(exit, hidden)
        if active[exit]:
            loss = loss + (to_head * weight + bias[exit]).sum()
    loss.backward()
    assert start.grad is not None
    return float(start.grad)


def test_equilibrium_gives_layers_the_mean_and_heads_their_full_gradient() -> None:
    bias = torch.zeros(4, requires_grad=True)
    assert backward([True] * 4, bias) == pytest.approx(277.75)
    assert bias.grad is not None
    assert bias.grad.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_equilibrium_of_a_group_is_the_mean_over_the_group() -> None:
    assert backward([True, False, True, True], torch.zeros(4)) == pytest.approx((1 + 100 + 1000) / 3)


def test_gradients_by_depth_are_divided_by_the_exits_from_there_on() -> None:
    logits = torch.zeros(2, 4, 3, requires_grad=True)
    scale_by_depth(logits).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, :, 0].tolist() == pytest.approx([0.25, 1 / 3, 0.5, 1.0])


@pytest.mark.parametrize(
    ("anchor", "other", "expected"),
    [
        pytest.param([1.0, 0.0], [-1.0, 1.0], [1.0, 1.0], id="final is the anchor"),
        pytest.param([1.0, 0.0], [-2.0, 1.0], [1.0, 1.0], id="stronger conflict"),
        pytest.param([0.0, -1.0], [3.0, 4.0], [3.0, -1.0], id="inner exits are the anchor"),
        pytest.param([1.0, 0.0], [2.0, 1.0], [3.0, 1.0], id="no conflict, plain sum"),
        pytest.param([0.0, 0.0], [2.0, 1.0], [2.0, 1.0], id="no anchor, plain sum"),
    ],
)
def test_conflict_is_removed_along_the_anchor(
    anchor: list[float], other: list[float], expected: list[float]
) -> None:
    a, b = torch.tensor(anchor), torch.tensor(other)
    [together] = remove_conflict([a + b], [a])
    assert together.tolist() == pytest.approx(expected)
    # several tensors are projected as one vector
    pieces = remove_conflict([(a + b)[:1], (a + b)[1:]], [a[:1], a[1:]])
    assert torch.cat(pieces).tolist() == pytest.approx(expected)


def test_projection_covers_the_matrices_of_all_layers_but_the_last(
    tiny_encoder: Callable[..., PreTrainedModel],
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=3))
    names = {id(p): name for name, p in model.named_parameters()}
    chosen = {names[id(p)] for p in projected_parameters(model)}
    assert len(chosen) == 2 * 6  # query, key, value, two dense and the attention's output, in two layers
    assert all("encoder.layer.0." in name or "encoder.layer.1." in name for name in chosen)
    assert not any("bias" in name or "LayerNorm" in name for name in chosen)


def test_projection_excludes_layers_above_the_last_inner_exit(
    tiny_encoder: Callable[..., PreTrainedModel],
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=6), exits=[2])
    assert len(projected_parameters(model)) == 2 * 6


def test_projection_covers_all_layers_if_they_share_weights(
    tiny_encoder: Callable[..., PreTrainedModel],
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("albert", num_hidden_groups=1))
    assert len(projected_parameters(model)) == 6


def test_an_anchor_whose_square_underflows_leaves_the_plain_sum() -> None:
    anchor, other = torch.tensor([1e-25, 0.0]), torch.tensor([-1.0, 1.0])
    (found,) = remove_conflict([anchor + other], [anchor])
    assert found.tolist() == [-1.0, 1.0]
