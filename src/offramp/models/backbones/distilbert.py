"""DistilBERT: BERT without token types; its head uses relu, not tanh."""

from typing import Any

from offramp.models.backbones.base import Backbone, FinalHead


class DistilBert(Backbone):
    has_token_types = False
    layer_list = "transformer.layer"

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.pre_classifier, classifier=model.classifier, activation="relu")
