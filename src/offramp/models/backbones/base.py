"""Backbone: runs a transformers encoder one layer at a time, through the encoder's own modules.

The methods here are BERT's, and other families override what differs. A backbone has no state: each method takes
the transformers model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask


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
