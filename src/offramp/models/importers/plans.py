"""How the checkpoints of each older codebase are read."""

import re

from offramp.errors import CannotLoad
from offramp.models.heads import HeadConfig
from offramp.models.importers.base import Checkpoint, ImportPlan, head_dropout


def deebert(checkpoint: Checkpoint) -> ImportPlan | None:
    mark = checkpoint.find(r"(bert|roberta)\.encoder\.highway\.")
    if mark is None:
        return None
    family = mark[1]
    encoder = checkpoint.encoder(family)
    last = encoder.num_hidden_layers - 1
    sources: dict[str, str | None] = {"backbone.": f"{family}."}
    for exit in range(last):
        sources[f"heads.poolers.{exit}."] = f"{family}.encoder.highway.{exit}.pooler."
        sources[f"heads.classifiers.{exit}."] = f"{family}.encoder.highway.{exit}.classifier."
    sources[f"heads.poolers.{last}."] = f"{family}.pooler."
    sources[f"heads.classifiers.{last}."] = "classifier."
    return ImportPlan(
        encoder,
        exits=list(range(1, last + 2)),
        head=HeadConfig(pooling="first", dropout=head_dropout(encoder)),
        sources=sources,
        # RomeBERT's momentum teacher is a second encoder, needed only for training
        dropped=(rf"{family}\.encoder\.highway\.{last}\.", rf"slow_{family}\.", r"slow_classifier\."),
    )


def elasticbert(checkpoint: Checkpoint) -> ImportPlan | None:
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


def elbert(checkpoint: Checkpoint) -> ImportPlan | None:
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


def pabee(checkpoint: Checkpoint) -> ImportPlan | None:
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
