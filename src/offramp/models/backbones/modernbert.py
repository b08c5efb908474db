"""ModernBERT: pre-norm, rotary positions, layers with sliding-window or full attention."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_sliding_window_mask

from offramp.models.backbones.base import Backbone, FinalHead


class Context(NamedTuple):
    """Masks and positions by attention type."""

    masks: dict[str, Any]
    positions: dict[str, tuple[Tensor, Tensor]]


class ModernBert(Backbone):
    has_token_types = False
    layer_list = "layers"

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> Context:
        kinds = set(model.config.layer_types)
        position = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        local = create_bidirectional_sliding_window_mask(
            config=model.config, inputs_embeds=hidden, attention_mask=attention_mask
        )
        return Context(
            masks={
                "full_attention": super().context(model, hidden, attention_mask),
                "sliding_attention": local,
            },
            positions={kind: model.rotary_emb(hidden, position, kind) for kind in kinds},
        )

    def layer(self, model: Any, index: int, hidden: Tensor, context: Context) -> Tensor:
        layer: Any = self.layers(model)[index]
        hidden = layer(
            hidden,
            attention_mask=context.masks[layer.attention_type],
            position_embeddings=context.positions[layer.attention_type],
        )
        return hidden

    def norm(self, model: Any, hidden: Tensor) -> Tensor:
        normed: Tensor = model.final_norm(hidden)
        return normed

    def truncation(self, config: Any, layers: int) -> dict[str, Any]:
        return {"num_hidden_layers": layers, "layer_types": config.layer_types[:layers]}

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(
            pooler=model.head.dense,
            classifier=model.classifier,
            activation=model.config.classifier_activation,
            norm=model.head.norm,
            pooling="mean" if model.config.classifier_pooling == "mean" else "first",
        )

    def final_token_head(self, model: Any) -> FinalHead:
        return replace(self.final_head(model), pooling="tokens")
