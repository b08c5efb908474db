"""ElasticBERT (Liu et al. 2022, arXiv:2110.07038): BERT, pretrained with a pooler for each layer.

Three kinds of checkpoint. The pretraining weights on the hub (`fnlp/elasticbert-base`) have poolers and no
classifier, so classifiers start anew and `num_labels` is to be given. A static fine-tuning has one
`classifier` behind its last layer: a model with a single exit. A dynamic one has `classifiers`, one for each
of the last `num_output_layers` layers. A pooler's number is its layer's; `max_output_layers` is no more than
the length of that list, with holes. `layer_norm_eps` is 1e-8 in the base and large models.
"""

from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, Plan, head_dropout


def plan(checkpoint: Checkpoint) -> Plan | None:
    mark = checkpoint.find(r"(elasticbert\.)?encoder\.pooler\.\d")
    if mark is None:
        return None
    prefix = mark[1] or ""  # saved without a head on top, it has none
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
    return Plan(
        encoder,
        exits=list(range(first + 1, layers + 1)),
        head=HeadConfig(pooling="first", dropout=head_dropout(encoder)),
        sources=sources,
        dropped=(r"predictions\.", r"sop_classifier\."),  # what it was pretrained with
    )
