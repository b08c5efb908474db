"""ElasticBERT (Liu et al. 2022, arXiv:2110.07038): BERT, pretrained with a pooler for each layer.

There are three kinds of checkpoint. The pretrained weights on the hub (`fnlp/elasticbert-base`) have poolers but no
classifiers, so these are initialized and `num_labels` is required. A static fine-tuning has one `classifier` after
its last layer: a model with a single exit. A dynamic one has `classifiers` for the last `num_output_layers` layers.
Poolers are numbered by layer. `layer_norm_eps` is 1e-8 in the base and large models.
"""

from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, ImportPlan, head_dropout


def plan(checkpoint: Checkpoint) -> ImportPlan | None:
    mark = checkpoint.find(r"(elasticbert\.)?encoder\.pooler\.\d")
    if mark is None:
        return None
    prefix = mark[1] or ""  # a bare encoder is saved without a prefix
    encoder = checkpoint.encoder("bert")
    layers = encoder.num_hidden_layers
    static = checkpoint.find(r"classifier\.") is not None
    first = layers - (1 if static else checkpoint.config.get("num_output_layers", layers))
    sources: dict[str, str | None] = {"backbone.": prefix}
    for exit, layer in enumerate(range(first, layers)):
        sources[f"heads.poolers.{exit}."] = f"{prefix}encoder.pooler.{layer}."
    if static:
        sources["heads.classifiers.0."] = "classifier."
    else:
        sources["heads.classifiers."] = "classifiers." if checkpoint.find(r"classifiers\.") else None
    return ImportPlan(
        encoder,
        exits=list(range(first + 1, layers + 1)),
        head=HeadConfig(pooling="first", dropout=head_dropout(encoder)),
        sources=sources,
        dropped=(r"predictions\.", r"sop_classifier\."),  # heads of the pretraining tasks
    )
