"""Early-exit Transformer encoders: train exits, measure every rule, run whole batches.

Names load on first use, so that measuring and predicting never load torch.
"""

from importlib import import_module
from typing import Any

from offramp.errors import MissingExtra, OfframpError, install_hint

__version__ = "0.1.0"

# public name -> the module that holds it, in the order of the data
_HOMES = {
    "Task": "offramp.tasks",
    "TASKS": "offramp.tasks",
    "BACKBONES": "offramp.backbones",
    "HeadConfig": "offramp.heads",
    "ExitConfig": "offramp.config",
    "ExitModel": "offramp.model",
    "import_checkpoint": "offramp.importers",
    "Recipe": "offramp.recipes",
    "Phase": "offramp.recipes",
    "RECIPES": "offramp.recipes",
    "train": "offramp.training",
    "Trace": "offramp.trace",
    "CRITERIA": "offramp.criteria",
    "Policy": "offramp.policy",
    "Curve": "offramp.curves",
    "sweep": "offramp.curves",
    "calibrate": "offramp.calibration",
    "Guarantee": "offramp.calibration",
    "MaxLoss": "offramp.calibration",
    "MinSpeedup": "offramp.calibration",
    "Budget": "offramp.calibration",
    "store_policy": "offramp.store",
    "Classifier": "offramp.classifier",
    "Prediction": "offramp.classifier",
    "collect": "offramp.collector",
}

# what a missing module means for the person who sees it
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

__all__ = ["MissingExtra", "OfframpError", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'offramp' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise MissingExtra(f"offramp.{name} {install_hint(error.name, extra)}") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
