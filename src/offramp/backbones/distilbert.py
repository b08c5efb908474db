"""DistilBERT: BERT without token types; its head uses relu, not tanh."""

from typing import Any

from torch import Tensor, nn

from offramp.backbones.base import Backbone, FinalHead


class DistilBert(Backbone):
    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        hidden: Tensor = model.embeddings(input_ids)
        return hidden

    def layers(self, model: Any) -> nn.ModuleList:
        layers: nn.ModuleList = model.transformer.layer
        return layers

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.pre_classifier, classifier=model.classifier, activation="relu")
