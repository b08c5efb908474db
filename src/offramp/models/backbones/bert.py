"""Families built like BERT: those of RoBERTa, Electra, DistilBERT and MPNet."""

from typing import Any, NamedTuple

from torch import Tensor

from offramp.models.backbones.base import Backbone, FinalHead


class Roberta(Backbone):
    """roberta, xlm-roberta, camembert, data2vec-text: as BERT, with another classification head."""

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.classifier.dense, classifier=model.classifier.out_proj)


class RobertaPreLayerNorm(Roberta):
    """Pre-norm: the output of a layer needs the final norm before a head."""

    def norm(self, model: Any, hidden: Tensor) -> Tensor:
        normed: Tensor = model.LayerNorm(hidden)
        return normed


class Electra(Backbone):
    """Embeddings may be narrower than the layers; the head uses gelu, not tanh."""

    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        hidden = super().embed(model, input_ids, attention_mask, token_type_ids)
        if hasattr(model, "embeddings_project"):
            hidden = model.embeddings_project(hidden)
        return hidden

    def final_head(self, model: Any) -> FinalHead:
        head = model.classifier
        return FinalHead(pooler=head.dense, classifier=head.out_proj, activation="gelu")


class DistilBert(Backbone):
    """No token types; the head uses relu, not tanh."""

    has_token_types = False
    layer_list = "transformer.layer"

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.pre_classifier, classifier=model.classifier, activation="relu")


class MPNetContext(NamedTuple):
    mask: Any
    position_bias: Tensor


class MPNet(Roberta):
    """No token types, and one relative position bias for all layers."""

    has_token_types = False

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> MPNetContext:
        mask = super().context(model, hidden, attention_mask)
        return MPNetContext(mask, model.encoder.compute_position_bias(hidden))

    def layer(self, model: Any, index: int, hidden: Tensor, context: MPNetContext) -> Tensor:
        out: Tensor = self.layers(model)[index](hidden, context.mask, context.position_bias)[0]
        return out
