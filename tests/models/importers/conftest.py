"""Reference implementations of the older models: checkpoints under their names, run with plain torch functions.

Nothing here uses offramp or a transformers model, so that imported models can be compared with it.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

WIDTH, INNER, NARROW, HEADS, VOCABULARY, POSITIONS = 16, 24, 8, 2, 60, 40


class Old:
    """An encoder's checkpoint under its old names; tests add the exits."""

    def __init__(self, family: str, prefix: str, layers: int, eps: float, groups: int) -> None:
        self.family, self.prefix, self.layers, self.eps, self.groups = family, prefix, layers, eps, groups
        self.random = torch.Generator().manual_seed(0)
        self.weights: dict[str, Tensor] = {}
        self.config: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
            "hidden_act": "gelu_new" if family == "albert" else "gelu",
            "hidden_dropout_prob": 0.2,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": POSITIONS,
            "type_vocab_size": 2,
            "layer_norm_eps": eps,
        }
        width = NARROW if family == "albert" else WIDTH
        for name, rows in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
            self.weights[f"{prefix}embeddings.{name}_embeddings.weight"] = self.numbers(rows, width)
        self.add_norm(f"{prefix}embeddings.LayerNorm", width)
        if family == "albert":
            self.config |= {"embedding_size": NARROW, "num_hidden_groups": groups, "inner_group_num": 1}
            self.add_linear(f"{prefix}encoder.embedding_hidden_mapping_in", WIDTH, NARROW)
        for part in {self.part(layer) for layer in range(layers)}:
            names = self.names(part)
            for name in ("query", "key", "value", "dense"):
                self.add_linear(names[name], WIDTH)
            self.add_linear(names["inner"], INNER)
            self.add_linear(names["outer"], WIDTH, INNER)
            self.add_norm(names["attention_norm"], WIDTH)
            self.add_norm(names["norm"], WIDTH)

    def part(self, layer: int) -> int:
        """The index of the weights that a layer uses."""
        return layer * self.groups // self.layers if self.family == "albert" else layer

    def names(self, part: int) -> dict[str, str]:
        if self.family == "albert":
            layer = f"{self.prefix}encoder.albert_layer_groups.{part}.albert_layers.0."
            return {name: f"{layer}attention.{name}" for name in ("query", "key", "value", "dense")} | {
                "attention_norm": f"{layer}attention.LayerNorm",
                "inner": f"{layer}ffn",
                "outer": f"{layer}ffn_output",
                "norm": f"{layer}full_layer_layer_norm",
            }
        layer = f"{self.prefix}encoder.layer.{part}."
        return {name: f"{layer}attention.self.{name}" for name in ("query", "key", "value")} | {
            "dense": f"{layer}attention.output.dense",
            "attention_norm": f"{layer}attention.output.LayerNorm",
            "inner": f"{layer}intermediate.dense",
            "outer": f"{layer}output.dense",
            "norm": f"{layer}output.LayerNorm",
        }

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random) * 0.4

    def add_linear(self, name: str, outputs: int, inputs: int = WIDTH) -> None:
        self.weights[f"{name}.weight"] = self.numbers(outputs, inputs)
        self.weights[f"{name}.bias"] = self.numbers(outputs)

    def add_norm(self, name: str, width: int) -> None:
        self.weights[f"{name}.weight"] = 1 + self.numbers(width)
        self.weights[f"{name}.bias"] = self.numbers(width)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias

    def pooled(self, name: str, hidden: Tensor) -> Tensor:
        return self.linear(name, hidden[:, 0]).tanh()

    def hidden_states(self, inputs: dict[str, Tensor], eps: float | None = None) -> list[Tensor]:
        """The output of each layer."""
        eps = self.eps if eps is None else eps
        ids = inputs["input_ids"]
        segments = inputs.get("token_type_ids", torch.zeros_like(ids))
        # RoBERTa's positions started at 2, whatever the padding id in its config
        positions = torch.arange(ids.shape[1]) + (2 if self.family == "roberta" else 0)
        embeddings = f"{self.prefix}embeddings."
        summed = sum(
            self.weights[f"{embeddings}{name}_embeddings.weight"][index]
            for name, index in (("word", ids), ("position", positions), ("token_type", segments))
        )
        hidden = self.norm(f"{embeddings}LayerNorm", summed, eps)
        if self.family == "albert":
            hidden = self.linear(f"{self.prefix}encoder.embedding_hidden_mapping_in", hidden)
        states = []
        for layer in range(self.layers):
            hidden = self.run(self.names(self.part(layer)), hidden, inputs["attention_mask"], eps)
            states.append(hidden)
        return states

    def run(self, names: dict[str, str], hidden: Tensor, mask: Tensor, eps: float) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (examples, heads, length, part)

        query, key, value = (split(self.linear(names[name], hidden)) for name in ("query", "key", "value"))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        weights = (scores + (1 - mask[:, None, None].float()) * -10000).softmax(-1)
        attended = self.linear(names["dense"], (weights @ value).transpose(1, 2).flatten(-2))
        hidden = self.norm(names["attention_norm"], hidden + attended, eps)
        inner = self.linear(names["inner"], hidden)
        inner = gelu_new(inner) if self.family == "albert" else functional.gelu(inner)
        return self.norm(names["norm"], hidden + self.linear(names["outer"], inner), eps)


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.fixture
def old() -> Callable[..., Old]:
    """old("bert", prefix="bert.", layers=3) -> a checkpoint without exits."""

    def make(
        family: str, prefix: str | None = None, layers: int = 4, eps: float = 1e-5, groups: int = 1
    ) -> Old:
        return Old(family, f"{family}." if prefix is None else prefix, layers, eps, groups)

    return make


@pytest.fixture
def deebert(old: Callable[..., Old]) -> Callable[..., Old]:
    """deebert("bert", labels=3) -> a DeeBERT checkpoint."""

    def make(family: str = "bert", labels: int = 3) -> Old:
        model = old(family)
        for layer in range(model.layers):
            model.add_linear(f"{family}.encoder.highway.{layer}.pooler.dense", WIDTH)
            model.add_linear(f"{family}.encoder.highway.{layer}.classifier", labels)
        model.add_linear(f"{family}.pooler.dense", WIDTH)
        model.add_linear("classifier", labels)
        return model

    return make


@pytest.fixture
def exits_of() -> Callable[..., Tensor]:
    """exits_of(model, inputs) -> the logits of every exit: (exits, examples, labels)."""

    @torch.no_grad()
    def run(model: Any, inputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = model(**inputs).exit_logits
        return logits.transpose(0, 1)

    return run


@pytest.fixture
def inputs(padded: dict[str, Tensor]) -> dict[str, Tensor]:
    """Padded rows with two segments each."""
    segments = (torch.arange(padded["input_ids"].shape[1]) > 2).long().expand_as(padded["input_ids"])
    return {**padded, "token_type_ids": segments}
