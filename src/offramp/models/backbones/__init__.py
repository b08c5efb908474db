"""Backbones by transformers' `model_type`.

An allow-list, because a similar module layout is not enough: xlm-roberta-xl would run as BERT and give wrong
results. Every backbone listed here is tested against transformers (docs/backbones.md).
"""

from offramp.errors import UnknownName
from offramp.models.backbones.albert import Albert
from offramp.models.backbones.base import Backbone, FinalHead
from offramp.models.backbones.bert import DistilBert, Electra, MPNet, Roberta, RobertaPreLayerNorm
from offramp.models.backbones.deberta import Deberta
from offramp.models.backbones.modernbert import ModernBert

BACKBONES: dict[str, Backbone] = {
    "albert": Albert(),
    "bert": Backbone(),
    "camembert": Roberta(),
    "data2vec-text": Roberta(),
    "deberta": Deberta(),
    "deberta-v2": Deberta(),
    "distilbert": DistilBert(),
    "electra": Electra(),
    "ernie": Backbone(),
    "modernbert": ModernBert(),
    "mpnet": MPNet(),
    "roberta": Roberta(),
    "roberta-prelayernorm": RobertaPreLayerNorm(),
    "xlm-roberta": Roberta(),
}


def backbone_for(model_type: str) -> Backbone:
    if model_type not in BACKBONES:
        raise UnknownName(
            f"model_type={model_type!r} is not supported; available: {', '.join(BACKBONES)}. "
            "See docs/backbones.md to add one."
        )
    return BACKBONES[model_type]


__all__ = ["BACKBONES", "Backbone", "FinalHead", "backbone_for"]
