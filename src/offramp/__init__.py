"""Early-exit Transformer encoders: train exits, measure every rule, run whole batches.

Names load on first use, so that measuring and predicting never load torch.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from offramp.errors import explain_missing

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}
"""The module of each public name."""

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'offramp' has no attribute {name!r}")
    with explain_missing(f"offramp.{name}"):
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
