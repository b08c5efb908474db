"""Equilibrium, scaling and projection against the original systems' numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from offramp import ExitModel
from offramp.gradients import by_depth, conflicting, equilibrium, without_conflict

HEADS = torch.tensor([1.0, 10.0, 100.0, 1000.0])


def backward(active: list[bool], bias: Tensor) -> float:
    """Four identity layers, each with a head that multiplies by 1, 10, 100, 1000: the gradient at the bottom."""
    start = torch.tensor([0.5], requires_grad=True)
    tap, hidden, loss = equilibrium(active), start, torch.tensor(0.0)
    for exit, weight in enumerate(HEADS):
        seen, hidden = tap(exit, hidden)
        if active[exit]:
            loss = loss + (seen * weight + bias[exit]).sum()
    loss.backward()
    assert start.grad is not None
    return float(start.grad)


def test_equilibrium_gives_the_mean_below_and_the_whole_to_heads() -> None:
    bias = torch.zeros(4, requires_grad=True)
    assert backward([True] * 4, bias) == pytest.approx(277.75)
    assert bias.grad is not None
    assert bias.grad.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_equilibrium_of_a_group_is_its_own_mean() -> None:
    assert backward([True, False, True, True], torch.zeros(4)) == pytest.approx((1 + 100 + 1000) / 3)


def test_gradients_by_depth_are_divided_by_the_exits_above() -> None:
    logits = torch.zeros(2, 4, 3, requires_grad=True)
    by_depth(logits).sum().backward()
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
    [together] = without_conflict([a + b], [a])
    assert together.tolist() == pytest.approx(expected)
    # cut into pieces it is still one projection, over all of them
    pieces = without_conflict([(a + b)[:1], (a + b)[1:]], [a[:1], a[1:]])
    assert torch.cat(pieces).tolist() == pytest.approx(expected)


def test_projection_is_over_the_matrices_of_all_layers_but_the_last(
    tiny_encoder: Callable[..., PreTrainedModel],
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=3))
    names = {id(p): name for name, p in model.named_parameters()}
    chosen = {names[id(p)] for p in conflicting(model)}
    assert len(chosen) == 2 * 6  # query, key, value, two dense and the attention's output, in two layers
    assert all("encoder.layer.0." in name or "encoder.layer.1." in name for name in chosen)
    assert not any("bias" in name or "LayerNorm" in name for name in chosen)


def test_projection_leaves_out_layers_above_the_last_inner_exit(
    tiny_encoder: Callable[..., PreTrainedModel],
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=6), exits=[2])
    assert len(conflicting(model)) == 2 * 6


def test_projection_takes_all_layers_where_they_share_weights(
    tiny_encoder: Callable[..., PreTrainedModel],
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("albert", num_hidden_groups=1))
    assert len(conflicting(model)) == 6


def test_an_anchor_too_small_to_be_squared_leaves_the_plain_sum() -> None:
    anchor, other = torch.tensor([1e-25, 0.0]), torch.tensor([-1.0, 1.0])
    (found,) = without_conflict([anchor + other], [anchor])
    assert found.tolist() == [-1.0, 1.0]
