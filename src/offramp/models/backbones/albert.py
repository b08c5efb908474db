"""ALBERT: groups of layers share weights, and embeddings are narrower than the layers."""

from typing import Any

from torch import Tensor, nn

from offramp.errors import BadOption
from offramp.models.backbones.base import Backbone, FinalHead


class Albert(Backbone):
    pooling = "first"
    layer_list = "encoder.albert_layer_groups"  # several layers can run through one group

    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        narrow = super().embed(model, input_ids, attention_mask, token_type_ids)
        hidden: Tensor = model.encoder.embedding_hidden_mapping_in(narrow)
        return hidden

    def layer(self, model: Any, index: int, hidden: Tensor, context: Any) -> Tensor:
        return super().layer(model, group(model.config, index), hidden, context)

    def truncation(self, config: Any, layers: int) -> dict[str, Any]:
        groups = group(config, layers - 1) + 1
        shorter = {"num_hidden_layers": layers, "num_hidden_groups": groups}
        cut = type(config)(**{**config.to_dict(), **shorter})
        if any(group(cut, i) != group(config, i) for i in range(layers)):
            raise BadOption(
                f"layer {layers} is inside a group of layers that share weights "
                f"({config.num_hidden_layers} layers in {config.num_hidden_groups} groups); "
                "truncate at the end of a group"
            )
        return shorter

    def pooler(self, model: Any) -> nn.Linear | None:
        dense: nn.Linear | None = model.pooler
        return dense

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.albert.pooler, classifier=model.classifier)


def group(config: Any, index: int) -> int:
    # as in transformers: integer division differs for odd (layers, groups), e.g. layer 9 of (18, 14)
    return int(index / (config.num_hidden_layers / config.num_hidden_groups))
