"""Backbones: run a transformers encoder one layer at a time, through the encoder's own modules.

The methods of `Backbone` are BERT's, and other families override what differs. A backbone has no state: each method
takes the transformers model.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from offramp.errors import BadOption, UnknownName


@dataclass(frozen=True)
class FinalHead:
    """The head of a fine-tuned `...ForSequenceClassification` or `...ForTokenClassification` model, as parts of a
    `Head`."""

    pooler: nn.Linear | None
    classifier: nn.Linear
    activation: str = "tanh"
    norm: nn.LayerNorm | None = None
    pooling: str = "first"


class Backbone:
    """How one family of encoders embeds tokens and runs a layer."""

    pooling = "mean"
    """The default pooling of exits; docs/backbones.md gives the reasons."""
    has_token_types = True
    layer_list = "encoder.layer"
    """Where the model keeps its layers."""

    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        types = {"token_type_ids": token_type_ids} if self.has_token_types else {}
        hidden: Tensor = model.embeddings(input_ids=input_ids, **types)
        return hidden

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> Any:
        """The other inputs of a layer, such as the attention mask. After rows or padding are dropped it is built
        again, not indexed: a mask may be None, 4-D, 2-D or a BlockMask."""
        if torch.compiler.is_exporting() and attention_mask is not None:
            # the same in 3 operations instead of 24, which would be repeated in the graph of every stage
            lowest = torch.finfo(hidden.dtype).min
            return torch.where(attention_mask[:, None, None, :].bool(), 0.0, lowest)
        return create_bidirectional_mask(
            config=model.config, inputs_embeds=hidden, attention_mask=attention_mask
        )

    def layers(self, model: Any) -> nn.ModuleList:
        layers: nn.ModuleList = model.get_submodule(self.layer_list)
        return layers

    def layer(self, model: Any, index: int, hidden: Tensor, context: Any) -> Tensor:
        hidden = self.layers(model)[index](hidden, context)
        return hidden

    def norm(self, model: Any, hidden: Tensor) -> Tensor:
        """Applied to hidden states before a head: the final norm of a pre-norm family, otherwise nothing."""
        return hidden

    def truncation(self, config: Any, layers: int) -> dict[str, Any]:
        """The changes to the encoder's config that keep only its first `layers` layers."""
        return {"num_hidden_layers": layers}

    def pooler(self, model: Any) -> nn.Linear | None:
        """The dense layer of the encoder's pooler, if it has one."""
        pooler = getattr(model, "pooler", None)
        return None if pooler is None else pooler.dense

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.base_model.pooler.dense, classifier=model.classifier)

    def final_token_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=None, classifier=model.classifier, pooling="tokens")


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


class Albert(Backbone):
    """Groups of layers share weights, and embeddings are narrower than the layers."""

    pooling = "first"
    layer_list = "encoder.albert_layer_groups"  # several layers can run through one group

    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        narrow = super().embed(model, input_ids, attention_mask, token_type_ids)
        hidden: Tensor = model.encoder.embedding_hidden_mapping_in(narrow)
        return hidden

    def layer(self, model: Any, index: int, hidden: Tensor, context: Any) -> Tensor:
        return super().layer(model, group_of(model.config, index), hidden, context)

    def truncation(self, config: Any, layers: int) -> dict[str, Any]:
        groups = group_of(config, layers - 1) + 1
        shorter = {"num_hidden_layers": layers, "num_hidden_groups": groups}
        cut = type(config)(**{**config.to_dict(), **shorter})
        if any(group_of(cut, i) != group_of(config, i) for i in range(layers)):
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


def group_of(config: Any, index: int) -> int:
    # as in transformers: integer division differs for odd (layers, groups), e.g. layer 9 of (18, 14)
    return int(index / (config.num_hidden_layers / config.num_hidden_groups))


class DebertaContext(NamedTuple):
    tokens: Tensor  # (examples, length): the input of the convolution
    mask: Tensor
    relative_positions: Tensor | None
    relative_embeddings: Tensor | None


class Deberta(Backbone):
    """deberta, deberta-v2 and v3: relative positions; v2 may have a convolution in its first layer."""

    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden: Tensor = model.embeddings(input_ids=input_ids, token_type_ids=token_type_ids, mask=mask)
        return hidden

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> DebertaContext:
        tokens = (
            torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            if attention_mask is None
            else attention_mask
        )
        encoder = model.encoder
        return DebertaContext(
            tokens,
            encoder.get_attention_mask(tokens),
            encoder.get_rel_pos(hidden),
            encoder.get_rel_embedding(),
        )

    def layer(self, model: Any, index: int, hidden: Tensor, context: DebertaContext) -> Tensor:
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


class ModernBertContext(NamedTuple):
    """Masks and positions by attention type."""

    masks: dict[str, Any]
    positions: dict[str, tuple[Tensor, Tensor]]


class ModernBert(Backbone):
    """Pre-norm, rotary positions, layers with sliding-window or full attention."""

    has_token_types = False
    layer_list = "layers"

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> ModernBertContext:
        kinds = set(model.config.layer_types)
        position = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        local = create_bidirectional_sliding_window_mask(
            config=model.config, inputs_embeds=hidden, attention_mask=attention_mask
        )
        return ModernBertContext(
            masks={
                "full_attention": super().context(model, hidden, attention_mask),
                "sliding_attention": local,
            },
            positions={kind: model.rotary_emb(hidden, position, kind) for kind in kinds},
        )

    def layer(self, model: Any, index: int, hidden: Tensor, context: ModernBertContext) -> Tensor:
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


BACKBONES: dict[str, Backbone] = {
    "albert": Albert(),
    "bert": Backbone(),
    "camembert": Roberta(),
    "data2vec-text": Roberta(),
    "deberta": Deberta(),
    "deberta-v2": Deberta(),
    "distilbert": DistilBert(),
    "electra": Electra(),
    "ernie": Backbone(),
    "modernbert": ModernBert(),
    "mpnet": MPNet(),
    "roberta": Roberta(),
    "roberta-prelayernorm": RobertaPreLayerNorm(),
    "xlm-roberta": Roberta(),
}
"""By transformers' `model_type`. An allow-list, because a similar module layout is not enough: xlm-roberta-xl would
run as BERT and give wrong results. Every backbone listed here is tested against transformers (docs/backbones.md)."""


def backbone_for(model_type: str) -> Backbone:
    if model_type not in BACKBONES:
        raise UnknownName(
            f"model_type={model_type!r} is not supported; available: {', '.join(BACKBONES)}. "
            "See docs/backbones.md to add one."
        )
    return BACKBONES[model_type]
