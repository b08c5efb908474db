"""PABEE (Zhou et al. 2020, arXiv:2006.04152), on BERT and on ALBERT.

All exits share the encoder's pooler, and each has its own classifier. ALBERT's pooler is a bare linear layer, BERT's
is called `dense`.
"""

from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, ImportPlan, head_dropout


def plan(checkpoint: Checkpoint) -> ImportPlan | None:
    mark = checkpoint.find(r"(bert|albert)\.")
    if mark is None or not checkpoint.find(r"classifiers\.\d"):
        return None
    family = mark[1]
    encoder = checkpoint.encoder(family)
    return ImportPlan(
        encoder,
        exits=list(range(1, encoder.num_hidden_layers + 1)),
        head=HeadConfig(pooling="first", pooler="shared", dropout=head_dropout(encoder)),
        sources={
            "backbone.": f"{family}.",
            "heads.poolers.0.dense.": "albert.pooler." if family == "albert" else "bert.pooler.dense.",
            "heads.classifiers.": "classifiers.",
        },
    )
