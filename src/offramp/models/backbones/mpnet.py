"""MPNet: no token types, and one relative position bias for all layers."""

from typing import Any, NamedTuple

from torch import Tensor

from offramp.models.backbones.base import Backbone, FinalHead


class Context(NamedTuple):
    mask: Any
    position_bias: Tensor


class MPNet(Backbone):
    has_token_types = False

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> Context:
        return Context(
            super().context(model, hidden, attention_mask), model.encoder.compute_position_bias(hidden)
        )

    def layer(self, model: Any, index: int, hidden: Tensor, context: Context) -> Tensor:
        out: Tensor = self.layers(model)[index](hidden, context.mask, context.position_bias)[0]
        return out

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.classifier.dense, classifier=model.classifier.out_proj)
