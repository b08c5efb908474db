"""DeeBERT (Xin et al. 2020, arXiv:2004.12993) and RomeBERT (Geng et al. 2021, arXiv:2101.09755).

RomeBERT trains the same exits in another way, so the checkpoints look alike: every layer has an off-ramp with its own
pooler and classifier, and the last layer also has the usual head. The last off-ramp is never trained, so the usual
head becomes the last exit.
"""

from offramp.heads import HeadConfig
from offramp.importers.base import Checkpoint, ImportPlan, head_dropout


def plan(checkpoint: Checkpoint) -> ImportPlan | None:
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
