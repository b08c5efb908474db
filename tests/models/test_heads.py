"""Heads: pooling, sharing and the number of parameters of each published layout."""

from typing import Any

import pytest
import torch

from offramp.errors import BadOption
from offramp.models.heads import HeadConfig, Heads, pool

EXITS, WIDTH, LABELS = 6, 8, 3
POOLER = WIDTH * WIDTH + WIDTH
CLASSIFIER = WIDTH * LABELS + LABELS


def heads(**settings: Any) -> Heads:
    torch.manual_seed(0)
    return Heads(HeadConfig(**settings).with_defaults("mean"), EXITS, WIDTH, LABELS).eval()


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        pytest.param({"pooler": "own"}, EXITS * (POOLER + CLASSIFIER), id="deebert"),
        pytest.param({"pooler": "shared"}, POOLER + EXITS * CLASSIFIER, id="pabee"),
        pytest.param({"pooler": "shared", "classifier": "shared"}, POOLER + CLASSIFIER, id="elbert"),
        pytest.param({"pooler": "shared", "classifier": 2}, POOLER + 3 * CLASSIFIER, id="elbert, 3 heads"),
        pytest.param({"pooler": "none", "classifier": 4}, 2 * CLASSIFIER, id="an uneven last group"),
        pytest.param(
            {"pooler": "none", "hidden": 5, "classifier": "shared"},
            (WIDTH * 5 + 5) + (5 * LABELS + LABELS),
            id="hidden layer",
        ),
    ],
)
def test_sharing_determines_the_number_of_parameters(settings: dict[str, Any], count: int) -> None:
    assert parameters(heads(**settings)) == count


def test_the_mean_excludes_padding() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[2.0], [4.0], [9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert pool(hidden, mask, "mean").flatten().tolist() == [2.0, 5.0]
    assert pool(hidden, None, "mean")[1].item() == 5.0
    assert pool(hidden, mask, "first").flatten().tolist() == [1.0, 2.0]


def test_an_exit_computes_pooler_tanh_classifier() -> None:
    module, hidden = heads(pooling="first", classifier=4), torch.randn(2, 5, WIDTH)
    logits, gate = module(5, hidden, None)
    pooler, classifier = module.poolers[5].dense, module.classifiers[1]
    by_hand = torch.tanh(hidden[:, 0] @ pooler.weight.T + pooler.bias) @ classifier.weight.T + classifier.bias
    torch.testing.assert_close(logits, by_hand)
    assert gate is None


def test_the_last_exit_may_have_another_pooling() -> None:
    module, hidden = heads(final_pooling="first"), torch.randn(2, 5, WIDTH)
    changed = hidden.clone()
    changed[:, 1:] += 1
    assert not torch.allclose(module(4, hidden, None)[0], module(4, changed, None)[0])
    assert torch.equal(module(5, hidden, None)[0], module(5, changed, None)[0])


def test_the_gate_is_a_probability_without_gradients_for_the_exits() -> None:
    module, hidden = heads(gate=True), torch.randn(2, 5, WIDTH)
    _, gate = module(2, hidden, None)
    assert gate.shape == (2,)
    assert ((gate > 0) & (gate < 1)).all()
    gate.sum().backward()
    assert module.gate.weight.grad is not None
    assert module.poolers[2].dense.weight.grad is None


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "max"},
        {"final_pooling": "last"},
        {"pooler": "two"},
        {"pooler": "shared", "pooling": "pair"},
        {"activation": "tan"},
        {"classifier": "each"},
        {"classifier": 0},
        {"classifier": True},
        {"hidden": -1},
        {"dropout": 1.0},
        {"dropout": "a"},
        {"hidden": "a"},
        {"norm": "yes"},
        {"norm_eps": "tiny"},
        {"norm_eps": 0},
        {"gate": "open"},
        {"color": "red"},
    ],
)
def test_an_invalid_option_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(settings))):
        HeadConfig.from_dict(settings)
