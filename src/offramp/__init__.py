"""Early-exit Transformer encoders: train exits, measure every rule, run whole batches.

Names load on first use, so that measuring and predicting never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offramp.errors import MissingExtra, NoSafeThreshold, OfframpError, extra_with, install_hint

if TYPE_CHECKING:  # the same names as in _NAMES, for type checkers
    from offramp.data import TASKS, Task
    from offramp.inference import Classifier, Prediction
    from offramp.inference.collect import collect
    from offramp.inference.reranker import Ranked, Reranker
    from offramp.measuring import (
        Budget,
        Curve,
        Guarantee,
        MaxLoss,
        MinSpeedup,
        Sweep,
        calibrate,
        sweep,
    )
    from offramp.models.backbones import BACKBONES
    from offramp.models.config import ExitConfig
    from offramp.models.exit_model import ExitModel
    from offramp.models.heads import HeadConfig
    from offramp.models.importers import import_checkpoint
    from offramp.onnx_export import export
    from offramp.policy import Certificate, Policy
    from offramp.reports import report
    from offramp.reports.stored_policy import store_policy, store_rank_rule
    from offramp.reranking.calibrate import RankGuarantee, calibrate_ranking
    from offramp.retrofits import Retrofit, retrofit, retrofit_reranker
    from offramp.rules import RULES
    from offramp.trace import Trace
    from offramp.training import train
    from offramp.training.recipes import RECIPES, Phase, Recipe

__version__ = "0.1.0"

# module -> its public names, in the order of the data
_NAMES = {
    "data": "Task TASKS",
    "models.backbones": "BACKBONES",
    "models.heads": "HeadConfig",
    "models.config": "ExitConfig",
    "models.exit_model": "ExitModel",
    "models.importers": "import_checkpoint",
    "training.recipes": "Recipe Phase RECIPES",
    "training": "train",
    "trace": "Trace",
    "rules": "RULES",
    "policy": "Policy",
    "guarantees.certificate": "Certificate",
    "measuring": "Curve Sweep sweep calibrate Guarantee MaxLoss MinSpeedup Budget",
    "reports": "report",
    "reports.stored_policy": "store_policy store_rank_rule",
    "inference": "Classifier Prediction",
    "inference.collect": "collect",
    "inference.reranker": "Ranked Reranker",
    "reranking.calibrate": "RankGuarantee calibrate_ranking",
    "onnx_export": "export",
    "retrofits": "Retrofit retrofit retrofit_reranker",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BACKBONES",
    "RECIPES",
    "RULES",
    "TASKS",
    "Budget",
    "Certificate",
    "Classifier",
    "Curve",
    "ExitConfig",
    "ExitModel",
    "Guarantee",
    "HeadConfig",
    "MaxLoss",
    "MinSpeedup",
    "MissingExtra",
    "NoSafeThreshold",
    "OfframpError",
    "Phase",
    "Policy",
    "Prediction",
    "RankGuarantee",
    "Ranked",
    "Recipe",
    "Reranker",
    "Retrofit",
    "Sweep",
    "Task",
    "Trace",
    "calibrate",
    "calibrate_ranking",
    "collect",
    "export",
    "import_checkpoint",
    "report",
    "retrofit",
    "retrofit_reranker",
    "store_policy",
    "store_rank_rule",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'offramp' has no attribute {name!r}")
    try:
        return getattr(import_module(f"offramp.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (extra := extra_with(error.name)) is None:
            raise
        raise MissingExtra(f"offramp.{name} {install_hint(error.name, extra)}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
