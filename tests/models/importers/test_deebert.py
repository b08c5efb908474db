"""DeeBERT and RomeBERT: off-ramps with a pooler each; the usual head is the last exit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from offramp.errors import CannotLoad
from offramp.models.importers import import_weights

Inputs = dict[str, Tensor]


def expected(old: Any, inputs: Inputs) -> Tensor:
    *earlier, last = old.hidden_states(inputs)
    ramp = f"{old.family}.encoder.highway."
    logits = [
        old.linear(f"{ramp}{i}.classifier", old.pooled(f"{ramp}{i}.pooler.dense", hidden))
        for i, hidden in enumerate(earlier)
    ]
    final = old.linear("classifier", old.pooled(f"{old.family}.pooler.dense", last))
    return torch.stack([*logits, final])


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_every_exit_has_the_logits_of_deebert(
    family: str, deebert: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    old = deebert(family)
    imported = import_weights(old.weights, old.config)
    assert imported.system == "deebert"
    assert imported.model.config.exits == [1, 2, 3, 4]
    assert imported.model.config.fine_tuned
    assert imported.model.truncate(2).config.fine_tuned
    assert_close(exits_of(imported.model, inputs), expected(old, inputs), rtol=1e-4, atol=1e-5)


def test_the_last_off_ramp_is_dropped_and_listed(deebert: Callable[..., Any]) -> None:
    old = deebert()
    untrained = [name for name in old.weights if name.startswith("bert.encoder.highway.3.")]
    assert import_weights(old.weights, old.config).dropped == sorted(untrained)
    assert len(untrained) == 4


@pytest.mark.parametrize("padding", [0, None])
def test_positions_of_roberta_start_at_two_whatever_its_padding_id(
    padding: int | None, deebert: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    old = deebert("roberta")
    model = import_weights(old.weights, old.config | {"pad_token_id": padding}).model
    assert_close(exits_of(model, inputs), expected(old, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_momentum_teacher_of_romebert_is_dropped_and_listed(
    family: str, deebert: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    old = deebert(family)
    plain = import_weights(old.weights, old.config)
    teacher = {
        f"slow_{name}": tensor + 1
        for name, tensor in old.weights.items()
        if name.startswith((family, "classifier")) and ".highway." not in name
    }
    taught = import_weights(old.weights | teacher, old.config)
    assert taught.dropped == sorted([*plain.dropped, *teacher])
    assert torch.equal(exits_of(taught.model, inputs), exits_of(plain.model, inputs))


def test_norms_named_gamma_and_beta_are_imported(
    deebert: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    old = deebert()
    ancient = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in old.weights.items()
    }
    assert ancient.keys() != old.weights.keys()
    model = import_weights(ancient, old.config).model
    assert_close(exits_of(model, inputs), expected(old, inputs), rtol=1e-4, atol=1e-5)


def test_a_norm_under_both_names_is_an_error(deebert: Callable[..., Any]) -> None:
    old = deebert()
    twice = {"bert.embeddings.LayerNorm.gamma": torch.ones(16)}
    with pytest.raises(CannotLoad, match=r"unknown weights: bert\.embeddings\.LayerNorm\.gamma"):
        import_weights(old.weights | twice, old.config)
