"""ELBERT (Xie et al. 2021, arXiv:2107.00175), on ALBERT.

One head for all layers by default, `exit_out_layer`, with ALBERT's own pooler. Its options: k heads,
`exit_out_layers.0` to `k-1`, each for as many consecutive layers; a hidden layer (`use_fc2`), so that
`classifier` becomes `classifier1` and `classifier2`; a pooler in each head (`use_out_pooler` false). Which of
these were used is read from the names.
"""

import re

from offramp.errors import CannotLoad
from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, Plan, head_dropout


def plan(checkpoint: Checkpoint) -> Plan | None:
    if not checkpoint.find(r"albert\.encoder\.exit_out_layer"):
        return None
    pooled = checkpoint.config.get("pooler_input", "cls")
    if pooled != "cls":
        raise CannotLoad(
            f"pooler_input={pooled!r} cannot be imported, only 'cls': means and maxima went over the padding "
            "too, so that an answer depended on how far its text was padded"
        )
    encoder = checkpoint.encoder("albert")
    layers = encoder.num_hidden_layers
    heads = head_names(checkpoint)
    if layers % len(heads):
        raise CannotLoad(
            f"{len(heads)} heads (num_exit_layers) cannot share {layers} layers evenly, as ELBERT's do. "
            "Is config.json the one that was saved with these weights?"
        )
    hidden = checkpoint.weights.get(f"{heads[0]}classifier1.weight")
    own_pooler = f"{heads[0]}pooler.weight" in checkpoint.weights
    sources: dict[str, str | None] = {"backbone.": "albert."}
    for index, head in enumerate(heads):
        sources[f"heads.hidden.{index}."] = f"{head}classifier1."
        sources[f"heads.classifiers.{index}."] = f"{head}classifier{'' if hidden is None else 2}."
    for exit in range(layers):
        head = heads[exit // (layers // len(heads))]
        sources[f"heads.poolers.{exit}.dense."] = f"{head if own_pooler else 'albert.'}pooler."
    return Plan(
        encoder,
        exits=list(range(1, layers + 1)),
        head=HeadConfig(
            pooling="first",
            # several heads with a pooler each: ours are shared by all exits or by none, so exits get copies
            pooler="own" if own_pooler and len(heads) > 1 else "shared",
            classifier={1: "shared", layers: "own"}.get(len(heads), layers // len(heads)),
            hidden=0 if hidden is None else len(hidden),
            dropout=head_dropout(encoder),
        ),
        sources=sources,
        dropped=(r"albert\.pooler\.",),  # what is left of ALBERT's own, if the heads have theirs
    )


def head_names(checkpoint: Checkpoint) -> list[str]:
    """How the names of each head begin."""
    found = (re.match(r"albert\.encoder\.exit_out_layers?\.(\d+\.)?", name) for name in checkpoint.weights)
    return sorted({match[0] for match in found if match}, key=lambda name: (len(name), name))
