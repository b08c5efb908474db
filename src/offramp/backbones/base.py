"""What a backbone offers: a transformers encoder run one layer at a time, without modeling code of our own.

The methods here are BERT's shape, which most families share; a family overrides where it differs. A backbone
holds no state: each method takes the transformers model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask


@dataclass(frozen=True)
class FinalHead:
    """The head of a fine-tuned `...ForSequenceClassification` model, in the terms of our heads."""

    pooler: nn.Linear
    classifier: nn.Linear
    activation: str = "tanh"
    norm: nn.LayerNorm | None = None
    pooling: str = "first"


class Backbone:
    """How one family of encoders is embedded, masked, run layer by layer and normed."""

    pooling = "mean"
    """What exits pool by default; docs/backbones.md gives the reasons."""

    def embed(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Tensor:
        hidden: Tensor = model.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
        return hidden

    def context(self, model: Any, hidden: Tensor, attention_mask: Tensor | None) -> Any:
        """What the layers need besides the hidden states. When rows or padding have gone it is built anew:
        a mask may be None, 4-D, 2-D or a BlockMask, so it is never indexed."""
        if torch.compiler.is_exporting() and attention_mask is not None:
            # the same in 3 operations instead of 24, which the graph of every stage would repeat
            lowest = torch.finfo(hidden.dtype).min
            return torch.where(attention_mask[:, None, None, :].bool(), 0.0, lowest)
        return create_bidirectional_mask(
            config=model.config, inputs_embeds=hidden, attention_mask=attention_mask
        )

    def layers(self, model: Any) -> nn.ModuleList:
        layers: nn.ModuleList = model.encoder.layer
        return layers

    def layer(self, model: Any, index: int, hidden: Tensor, context: Any) -> Tensor:
        hidden = self.layers(model)[index](hidden, context)
        return hidden

    def norm(self, model: Any, hidden: Tensor) -> Tensor:
        """What stands between a layer and a head: nothing, or the final norm of a pre-norm family."""
        return hidden

    def truncated(self, config: Any, layers: int) -> dict[str, Any]:
        """The changes to a family's config that leave its first layers, each as it was."""
        return {"num_hidden_layers": layers}

    def pooler(self, model: Any) -> nn.Linear | None:
        """The dense layer of the encoder's own pooler, where the family has one."""
        pooler = getattr(model, "pooler", None)
        return None if pooler is None else pooler.dense

    def final_head(self, model: Any) -> FinalHead:
        return FinalHead(pooler=model.base_model.pooler.dense, classifier=model.classifier)
