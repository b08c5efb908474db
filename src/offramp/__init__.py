"""Early-exit Transformer encoders: train exits, measure every rule, run whole batches.

Names load on first use, so that measuring and predicting never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offramp.errors import MissingExtra, NoSafeThreshold, OfframpError, install_hint

if TYPE_CHECKING:  # the same names as in _MODULES, for type checkers
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
    from offramp.store import store_policy
    from offramp.tasks import TASKS, Task
    from offramp.trace import Trace
    from offramp.training import default_arguments, train

__version__ = "0.1.0"

# public name -> its module, in the order of the data
_MODULES = {
    "Task": "tasks",
    "TASKS": "tasks",
    "BACKBONES": "backbones",
    "HeadConfig": "heads",
    "ExitConfig": "config",
    "ExitModel": "model",
    "import_checkpoint": "importers",
    "Recipe": "recipes",
    "Phase": "recipes",
    "RECIPES": "recipes",
    "train": "training",
    "default_arguments": "training",
    "Trace": "trace",
    "CRITERIA": "criteria",
    "Policy": "policy",
    "Certificate": "policy",
    "Curve": "curves",
    "Sweep": "curves",
    "sweep": "curves",
    "calibrate": "calibration",
    "fit_temperatures": "calibration",
    "Guarantee": "calibration",
    "MaxLoss": "calibration",
    "MinSpeedup": "calibration",
    "Budget": "calibration",
    "report": "reports",
    "store_policy": "store",
    "Classifier": "classifier",
    "Prediction": "classifier",
    "collect": "collector",
    "export": "onnx_export",
}

# imported module -> the extra that installs it
_EXTRAS = {
    "scipy": "measure",
    "sklearn": "measure",
    "torch": "train",
    "transformers": "train",
    "accelerate": "train",
    "datasets": "train",
    "matplotlib": "plot",
    "onnxruntime": "onnx",
    "onnx": "export",
    "onnxscript": "export",
    "fastapi": "serve",
    "prometheus_client": "serve",
    "uvicorn": "serve",
    "ray": "ray",
}

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
    "Recipe",
    "Sweep",
    "Task",
    "Trace",
    "calibrate",
    "collect",
    "default_arguments",
    "export",
    "fit_temperatures",
    "import_checkpoint",
    "report",
    "store_policy",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'offramp' has no attribute {name!r}")
    try:
        return getattr(import_module(f"offramp.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise MissingExtra(f"offramp.{name} {install_hint(str(error.name), extra)}") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
