"""PABEE: one pooler for all exits, a classifier for each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from offramp.models.importers import import_weights

Inputs = dict[str, Tensor]


@pytest.mark.parametrize(
    ("family", "pooler", "groups"),
    [("bert", "bert.pooler.dense", 1), ("albert", "albert.pooler", 1), ("albert", "albert.pooler", 2)],
)
def test_every_exit_has_the_logits_of_pabee(
    family: str,
    pooler: str,
    groups: int,
    old: Callable[..., Any],
    exits_of: Callable[..., Tensor],
    inputs: Inputs,
) -> None:
    model = old(family, groups=groups)
    model.add_linear(pooler, 16)
    for layer in range(model.layers):
        model.add_linear(f"classifiers.{layer}", 2)
    imported = import_weights(model.weights, model.config)
    expected = [
        model.linear(f"classifiers.{layer}", model.pooled(pooler, hidden))
        for layer, hidden in enumerate(model.hidden_states(inputs))
    ]
    assert imported.system == "pabee"
    assert imported.dropped == imported.fresh == []
    assert imported.model.config.head["pooler"] == "shared"
    assert_close(exits_of(imported.model, inputs), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("family", "dropout"), [("bert", 0.2), ("albert", 0.1)])
def test_dropout_before_a_classifier_is_kept(family: str, dropout: float, old: Callable[..., Any]) -> None:
    model = old(family)
    model.add_linear("bert.pooler.dense" if family == "bert" else "albert.pooler", 16)
    for layer in range(model.layers):
        model.add_linear(f"classifiers.{layer}", 2)
    assert import_weights(model.weights, model.config).model.heads.dropouts[0].p == dropout
