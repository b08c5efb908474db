"""ELBERT: one head for all layers of ALBERT, or one for every few layers; with its options."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from offramp.errors import CannotLoad
from offramp.models.importers import import_weights

Inputs = dict[str, Tensor]
LAYERS, HIDDEN = 4, 6


def head_name(heads: int, layer: int) -> str:
    if heads == 1:
        return "albert.encoder.exit_out_layer"
    return f"albert.encoder.exit_out_layers.{layer // (LAYERS // heads)}"


def checkpoint(old: Callable[..., Any], heads: int, hidden: bool, own_pooler: bool) -> Any:
    model = old("albert", layers=LAYERS)
    model.config |= {"num_exit_layers": heads, "use_fc2": hidden, "use_out_pooler": not own_pooler}
    model.config |= {"pooler_input": "cls", "fc_size1": 16, "fc_size2": HIDDEN, "exit_thres": 0.1}
    model.add_linear("albert.pooler", 16)
    for name in sorted({head_name(heads, layer) for layer in range(LAYERS)}):
        if own_pooler:
            model.add_linear(f"{name}.pooler", 16)
        if hidden:
            model.add_linear(f"{name}.classifier1", HIDDEN)
            model.add_linear(f"{name}.classifier2", 2, HIDDEN)
        else:
            model.add_linear(f"{name}.classifier", 2)
    return model


def expected(model: Any, inputs: Inputs) -> Tensor:
    options = model.config
    logits = []
    for layer, hidden in enumerate(model.hidden_states(inputs)):
        name = head_name(options["num_exit_layers"], layer)
        vector = model.pooled("albert.pooler" if options["use_out_pooler"] else f"{name}.pooler", hidden)
        if options["use_fc2"]:
            vector = model.linear(f"{name}.classifier1", vector).tanh()
            logits.append(model.linear(f"{name}.classifier2", vector))
        else:
            logits.append(model.linear(f"{name}.classifier", vector))
    return torch.stack(logits)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("own_pooler", [False, True])
def test_every_exit_has_the_logits_of_elbert(
    heads: int,
    hidden: bool,
    own_pooler: bool,
    old: Callable[..., Any],
    exits_of: Callable[..., Tensor],
    inputs: Inputs,
) -> None:
    model = checkpoint(old, heads, hidden, own_pooler)
    imported = import_weights(model.weights, model.config)
    assert imported.system == "elbert"
    assert imported.dropped == (["albert.pooler.bias", "albert.pooler.weight"] if own_pooler else [])
    assert_close(exits_of(imported.model, inputs), expected(model, inputs), rtol=1e-4, atol=1e-5)


def test_a_shared_head_adds_no_parameters(old: Callable[..., Any]) -> None:
    model = checkpoint(old, heads=1, hidden=False, own_pooler=False)
    imported = import_weights(model.weights, model.config).model
    assert sum(p.numel() for p in imported.parameters()) == sum(t.numel() for t in model.weights.values())


@pytest.mark.parametrize("pooling", ["mean", "cls-max"])
def test_pooling_over_the_padding_is_refused(pooling: str, old: Callable[..., Any]) -> None:
    model = checkpoint(old, heads=1, hidden=False, own_pooler=False)
    with pytest.raises(CannotLoad, match=f"pooler_input='{pooling}'.*padding"):
        import_weights(model.weights, model.config | {"pooler_input": pooling})


def test_heads_that_do_not_divide_the_layers_evenly_are_refused(old: Callable[..., Any]) -> None:
    model = checkpoint(old, heads=4, hidden=False, own_pooler=False)
    weights = {name: tensor for name, tensor in model.weights.items() if "exit_out_layers.3" not in name}
    with pytest.raises(CannotLoad, match=r"3 heads .* 4 layers"):
        import_weights(weights, model.config)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_pooler_of_another_width_is_an_error_that_names_fc_size1(
    hidden: bool, old: Callable[..., Any]
) -> None:
    model = checkpoint(old, heads=1, hidden=hidden, own_pooler=True)
    name, after = head_name(1, 0), "classifier1" if hidden else "classifier"
    model.config["fc_size1"] = 12
    model.add_linear(f"{name}.pooler", 12)
    model.add_linear(f"{name}.{after}", HIDDEN if hidden else 2, 12)
    with pytest.raises(CannotLoad, match="fc_size1=12 cannot be imported, only 16"):
        import_weights(model.weights, model.config)
