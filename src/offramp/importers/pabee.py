"""PABEE (Zhou et al. 2020, arXiv:2006.04152), on BERT and on ALBERT.

One pooler, the encoder's own, for all exits; a classifier for each. ALBERT's pooler is a bare linear layer,
BERT's is called `dense`.
"""

from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, Plan, head_dropout


def plan(checkpoint: Checkpoint) -> Plan | None:
    mark = checkpoint.find(r"(bert|albert)\.")
    if mark is None or not checkpoint.find(r"classifiers\.\d"):
        return None
    family = mark[1]
    encoder = checkpoint.encoder(family)
    return Plan(
        encoder,
        exits=list(range(1, encoder.num_hidden_layers + 1)),
        head=HeadConfig(pooling="first", pooler="shared", dropout=head_dropout(encoder)),
        sources={
            "backbone.": f"{family}.",
            "heads.poolers.0.dense.": "albert.pooler." if family == "albert" else "bert.pooler.dense.",
            "heads.classifiers.": "classifiers.",
        },
    )
