"""ElasticBERT: pretraining weights, static and dynamic fine-tunings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from offramp.errors import CannotLoad
from offramp.models.importers import import_weights

Inputs = dict[str, Tensor]
EPS = 1e-8


def checkpoint(
    old: Callable[..., Any], layers: int, outputs: int, prefix: str = "elasticbert.", longest: int = 6
) -> Any:
    model = old("bert", prefix=prefix, layers=layers, eps=EPS)
    model.config |= {"num_output_layers": outputs, "max_output_layers": longest, "model_type": "elasticbert"}
    for layer in range(layers - outputs, layers):
        model.add_linear(f"{prefix}encoder.pooler.{layer}.dense", 16)
    return model


def dynamic(old: Callable[..., Any], layers: int = 4, outputs: int = 4) -> Any:
    model = checkpoint(old, layers, outputs)
    for exit in range(outputs):
        model.add_linear(f"classifiers.{exit}", 3)
    return model


def expected(model: Any, inputs: Inputs, classifiers: list[str], eps: float = EPS) -> Tensor:
    first = model.layers - len(classifiers)
    states = model.hidden_states(inputs, eps)[first:]
    return torch.stack(
        [
            model.linear(classifier, model.pooled(f"{model.prefix}encoder.pooler.{layer}.dense", hidden))
            for layer, (classifier, hidden) in enumerate(zip(classifiers, states, strict=True), start=first)
        ]
    )


@pytest.mark.parametrize("outputs", [4, 2])
def test_every_exit_has_the_logits_of_dynamic_elasticbert(
    outputs: int, old: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    model = dynamic(old, layers=4, outputs=outputs)
    imported = import_weights(model.weights, model.config)
    wanted = expected(model, inputs, [f"classifiers.{exit}" for exit in range(outputs)])
    assert imported.system == "elasticbert"
    assert imported.model.config.exits == list(range(5 - outputs, 5))
    assert_close(exits_of(imported.model, inputs), wanted, rtol=1e-4, atol=1e-5)


def test_the_eps_of_the_norms_comes_from_the_config(
    old: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    model = dynamic(old)
    for name, tensor in model.weights.items():
        if "_embeddings" in name:
            tensor.mul_(1e-4)  # so small a variance that eps matters
    classifiers = [f"classifiers.{exit}" for exit in range(4)]
    wanted, wrong = (expected(model, inputs, classifiers, eps) for eps in (EPS, 1e-12))
    assert (wanted - wrong).abs().max() > 0.1
    assert_close(
        exits_of(import_weights(model.weights, model.config).model, inputs), wanted, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("layers", [2, 6])
def test_a_static_fine_tuning_has_one_exit_at_its_last_layer(
    layers: int, old: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    model = checkpoint(old, layers, outputs=1)
    model.add_linear("classifier", 3)
    imported = import_weights(model.weights, model.config).model
    assert imported.config.exits == [layers]
    assert_close(exits_of(imported, inputs), expected(model, inputs, ["classifier"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["elasticbert.", ""])
def test_pretraining_weights_keep_their_poolers_and_get_new_classifiers(
    prefix: str, old: Callable[..., Any], exits_of: Callable[..., Tensor], inputs: Inputs
) -> None:
    model = checkpoint(old, layers=4, outputs=4, prefix=prefix, longest=4)
    pretraining = ["predictions.decoder", "predictions.transforms.0.dense", "sop_classifier.classifiers.0"]
    for name in pretraining:
        model.add_linear(name, 2)
    imported = import_weights(model.weights, model.config, labels=["no", "maybe", "yes"])
    heads = imported.model.heads.classifiers
    for exit, head in enumerate(heads):
        model.weights |= {f"fresh.{exit}.{name}": tensor for name, tensor in head.state_dict().items()}
    wanted = expected(model, inputs, [f"fresh.{exit}" for exit in range(4)])
    assert_close(exits_of(imported.model, inputs), wanted, rtol=1e-4, atol=1e-5)
    assert imported.dropped == sorted(f"{name}.{kind}" for name in pretraining for kind in ("weight", "bias"))
    assert imported.fresh == [
        f"heads.classifiers.{i}.{kind}" for i in range(4) for kind in ("weight", "bias")
    ]
    assert all(head.weight.std() > 0 for head in heads)
    assert imported.model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}


def test_pretraining_weights_need_the_number_of_labels(old: Callable[..., Any]) -> None:
    model = checkpoint(old, layers=4, outputs=4)
    with pytest.raises(CannotLoad, match="pass num_labels="):
        import_weights(model.weights, model.config)
    config = import_weights(model.weights, model.config, num_labels=5).model.config
    assert (config.num_labels, config.fine_tuned) == (5, False)
