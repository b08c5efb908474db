"""ELBERT (Xie et al. 2021, arXiv:2107.00175), on ALBERT.

By default all layers share one head, `exit_out_layer`, and ALBERT's pooler. Options, recognized by the names of the
weights: k heads, `exit_out_layers.0` to `k-1`, each for the same number of consecutive layers; a hidden layer
(`use_fc2`), so that `classifier` becomes `classifier1` and `classifier2`; a pooler in each head (`use_out_pooler`
false), whose width is `fc_size1`.
"""

import re

from offramp.errors import CannotLoad
from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, ImportPlan, head_dropout


def plan(checkpoint: Checkpoint) -> ImportPlan | None:
    if not checkpoint.find(r"albert\.encoder\.exit_out_layer"):
        return None
    pooled = checkpoint.config.get("pooler_input", "cls")
    if pooled != "cls":
        raise CannotLoad(
            f"pooler_input={pooled!r} cannot be imported, only 'cls': ELBERT's mean and maximum include the padding, "
            "so that a prediction depends on how far its text is padded"
        )
    encoder = checkpoint.encoder("albert")
    layers = encoder.num_hidden_layers
    heads = head_names(checkpoint)
    if layers % len(heads):
        raise CannotLoad(
            f"{len(heads)} heads (num_exit_layers) do not divide {layers} layers evenly. "
            "Was config.json saved with these weights?"
        )
    hidden = checkpoint.weights.get(f"{heads[0]}classifier1.weight")
    pooler = checkpoint.weights.get(f"{heads[0]}pooler.weight")
    if pooler is not None and pooler.shape[0] != pooler.shape[1]:
        raise CannotLoad(
            f"fc_size1={pooler.shape[0]} cannot be imported, only {pooler.shape[1]}, the encoder's hidden size"
        )
    sources: dict[str, str | None] = {"backbone.": "albert."}
    for index, head in enumerate(heads):
        sources[f"heads.hidden.{index}."] = f"{head}classifier1."
        sources[f"heads.classifiers.{index}."] = f"{head}classifier{'' if hidden is None else 2}."
    for exit in range(layers):
        head = heads[exit // (layers // len(heads))]
        sources[f"heads.poolers.{exit}.dense."] = f"{'albert.' if pooler is None else head}pooler."
    return ImportPlan(
        encoder,
        exits=list(range(1, layers + 1)),
        head=HeadConfig(
            pooling="first",
            # our pooler is shared by all exits or by none: with several, each exit gets a copy
            pooler="shared" if pooler is None or len(heads) == 1 else "own",
            classifier={1: "shared", layers: "own"}.get(len(heads), layers // len(heads)),
            hidden=0 if hidden is None else len(hidden),
            dropout=head_dropout(encoder),
        ),
        sources=sources,
        dropped=(r"albert\.pooler\.",),  # ALBERT's own, if the heads have theirs
    )


def head_names(checkpoint: Checkpoint) -> list[str]:
    """The prefix of each head's weights."""
    found = (re.match(r"albert\.encoder\.exit_out_layers?\.(\d+\.)?", name) for name in checkpoint.weights)
    return sorted({match[0] for match in found if match}, key=lambda name: (len(name), name))
