"""Every backbone, run layer by layer, equals transformers' forward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from offramp.errors import BadOption, UnknownName
from offramp.models.backbones import BACKBONES, backbone_for

every_backbone = pytest.mark.parametrize("name", BACKBONES)
Inputs = dict[str, Tensor]


def run(model: Any, inputs: Inputs, layers: range, hidden: Tensor) -> Tensor:
    backbone = backbone_for(model.config.model_type)
    context = backbone.context(model, hidden, inputs["attention_mask"])
    for index in layers:
        hidden = backbone.layer(model, index, hidden, context)
    return hidden


def embed(model: Any, inputs: Inputs) -> Tensor:
    return backbone_for(model.config.model_type).embed(
        model, inputs["input_ids"], inputs["attention_mask"], None
    )


def norm(model: Any, hidden: Tensor) -> Tensor:
    return backbone_for(model.config.model_type).norm(model, hidden)


def real_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden[mask[:, : hidden.shape[1]].bool()]


@every_backbone
@torch.no_grad()
def test_layer_by_layer_equals_forward(
    name: str, tiny_encoder: Callable[..., PreTrainedModel], padded: Inputs
) -> None:
    model = tiny_encoder(name)
    hidden = norm(model, run(model, padded, range(4), embed(model, padded)))
    assert torch.equal(hidden, model(**padded).last_hidden_state)


@every_backbone
@torch.no_grad()
def test_dropping_rows_half_way_does_not_change_the_other_rows(
    name: str, tiny_encoder: Callable[..., PreTrainedModel], padded: Inputs
) -> None:
    model, rows = tiny_encoder(name), torch.tensor([2, 0])
    half = run(model, padded, range(2), embed(model, padded))
    kept = {key: tensor[rows] for key, tensor in padded.items()}
    hidden = norm(model, run(model, kept, range(2, 4), half[rows]))
    expected = model(**padded).last_hidden_state[rows]
    torch.testing.assert_close(
        real_tokens(hidden, kept["attention_mask"]), real_tokens(expected, kept["attention_mask"])
    )


@every_backbone
@torch.no_grad()
def test_trimming_padding_half_way_does_not_change_the_tokens(
    name: str, tiny_encoder: Callable[..., PreTrainedModel], padded: Inputs
) -> None:
    model, rows = tiny_encoder(name), torch.tensor([0, 1, 4])
    half = run(model, padded, range(2), embed(model, padded))
    kept = {key: tensor[rows, :7] for key, tensor in padded.items()}
    hidden = norm(model, run(model, kept, range(2, 4), half[rows, :7]))
    expected = model(**padded).last_hidden_state[rows]
    mask = kept["attention_mask"]
    torch.testing.assert_close(
        real_tokens(hidden, mask), real_tokens(expected[:, :7], mask), atol=1e-5, rtol=1e-4
    )


@every_backbone
@torch.no_grad()
def test_no_mask_means_no_padding(
    name: str, tiny_encoder: Callable[..., PreTrainedModel], padded: Inputs
) -> None:
    model = tiny_encoder(name)
    ids = padded["input_ids"][2:3]
    backbone = backbone_for(name)
    hidden = backbone.embed(model, ids, None, None)
    context = backbone.context(model, hidden, None)
    for index in range(4):
        hidden = backbone.layer(model, index, hidden, context)
    torch.testing.assert_close(norm(model, hidden), model(input_ids=ids).last_hidden_state)


def test_token_types_reach_the_encoder(tiny_encoder: Callable[..., PreTrainedModel], padded: Inputs) -> None:
    model, types = tiny_encoder("bert"), torch.ones_like(padded["input_ids"])
    hidden = BACKBONES["bert"].embed(model, padded["input_ids"], None, types)
    assert torch.equal(hidden, model.embeddings(input_ids=padded["input_ids"], token_type_ids=types))
    assert not torch.equal(hidden, embed(model, padded))


@pytest.mark.parametrize("name", ["xlm-roberta-xl", "rembert", "megatron-bert", "gpt2", "nonsense"])
def test_an_unsupported_type_is_refused_with_the_supported_ones_and_the_docs(name: str) -> None:
    with pytest.raises(UnknownName, match=r"bert.*modernbert.*docs/backbones\.md"):
        backbone_for(name)


def test_albert_assigns_layers_to_groups_as_transformers_does(
    tiny_encoder: Callable[..., PreTrainedModel], padded: Inputs
) -> None:
    # with 18 layers in 14 groups, integer division would give another group
    model = tiny_encoder("albert", layers=18, num_hidden_groups=14)
    with torch.no_grad():
        hidden = run(model, padded, range(18), embed(model, padded))
        assert torch.equal(hidden, model(**padded).last_hidden_state)


def test_albert_is_truncated_only_at_the_end_of_a_group() -> None:
    config = AutoConfig.for_model("albert", num_hidden_layers=12, num_hidden_groups=3)
    albert = BACKBONES["albert"]
    assert albert.truncation(config, 8) == {"num_hidden_layers": 8, "num_hidden_groups": 2}
    with pytest.raises(BadOption, match="share weights"):
        albert.truncation(config, 6)
