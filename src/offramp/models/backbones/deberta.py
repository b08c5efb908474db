"""DeBERTa and DeBERTa-v2/v3: relative positions; v2 may have a convolution in its first layer."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from offramp.models.backbones.base import Backbone, FinalHead


class Context(NamedTuple):
    tokens: Tensor  # (examples, length): the input of the convolution
    mask: Tensor
    relative_positions: Tensor | None
    relative_embeddings: Tensor | None


class Deberta(Backbone):
    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden: Tensor = model.embeddings(input_ids=input_ids, token_type_ids=token_type_ids, mask=mask)
        return hidden

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> Context:
        tokens = (
            torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            if attention_mask is None
            else attention_mask
        )
        encoder = model.encoder
        return Context(
            tokens,
            encoder.get_attention_mask(tokens),
            encoder.get_rel_pos(hidden),
            encoder.get_rel_embedding(),
        )

    def layer(self, model: Any, index: int, hidden: Tensor, context: Context) -> Tensor:
        out: Tensor = self.layers(model)[index](
            hidden,
            context.mask,
            relative_pos=context.relative_positions,
            rel_embeddings=context.relative_embeddings,
        )[0]
        convolution = getattr(model.encoder, "conv", None)
        if index == 0 and convolution is not None:
            out = convolution(hidden, out, context.tokens)
        return out

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(
            pooler=model.pooler.dense, classifier=model.classifier, activation=model.config.pooler_hidden_act
        )
