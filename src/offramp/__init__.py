"""Early-exit Transformer encoders: train exits, measure every rule, run whole batches.

Names load on first use, so that measuring and predicting never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offramp.errors import MissingExtra, NoSafeThreshold, OfframpError, extra_with, install_hint

if TYPE_CHECKING:  # the same names as in _NAMES, for type checkers
    from offramp.backbones import BACKBONES
    from offramp.calibration import Budget, Guarantee, MaxLoss, MinSpeedup, calibrate, fit_temperatures
    from offramp.classifier import Classifier, Prediction
    from offramp.collector import collect
    from offramp.config import ExitConfig
    from offramp.criteria import CRITERIA
    from offramp.curves import Curve, Sweep, sweep
    from offramp.heads import HeadConfig
    from offramp.importers import import_checkpoint
    from offramp.model import ExitModel
    from offramp.onnx_export import export
    from offramp.policy import Certificate, Policy
    from offramp.recipes import RECIPES, Phase, Recipe
    from offramp.reports import report
    from offramp.reranking import Ranked, Reranker
    from offramp.reranking.calibrate import RankGuarantee, calibrate_ranking
    from offramp.retrofits import Retrofit, retrofit, retrofit_reranker
    from offramp.store import store_policy, store_rank_rule
    from offramp.tasks import TASKS, Task
    from offramp.trace import Trace
    from offramp.training import default_arguments, train

__version__ = "0.1.0"

# module -> its public names, in the order of the data
_NAMES = {
    "tasks": "Task TASKS",
    "backbones": "BACKBONES",
    "heads": "HeadConfig",
    "config": "ExitConfig",
    "model": "ExitModel",
    "importers": "import_checkpoint",
    "recipes": "Recipe Phase RECIPES",
    "training": "train default_arguments",
    "trace": "Trace",
    "criteria": "CRITERIA",
    "policy": "Policy Certificate",
    "curves": "Curve Sweep sweep",
    "calibration": "calibrate fit_temperatures Guarantee MaxLoss MinSpeedup Budget",
    "reports": "report",
    "store": "store_policy store_rank_rule",
    "classifier": "Classifier Prediction",
    "collector": "collect",
    "reranking": "Ranked Reranker",
    "reranking.calibrate": "RankGuarantee calibrate_ranking",
    "onnx_export": "export",
    "retrofits": "Retrofit retrofit retrofit_reranker",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BACKBONES",
    "CRITERIA",
    "RECIPES",
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
    "default_arguments",
    "export",
    "fit_temperatures",
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
