"""Errors that a caller can cause. Each message names the cause and the next step."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

EXTRAS = {
    "measure": "scipy sklearn",
    "train": "torch transformers accelerate datasets",
    "onnx": "onnxruntime",
    "export": "onnx onnxscript",
    "serve": "fastapi prometheus_client uvicorn",
    "parquet": "pyarrow",
    "ray": "ray",
}
"""The modules that each extra installs."""


class OfframpError(Exception):
    """Base class: something passed to offramp was wrong, and the message is meant for the person who passed it."""


class MissingExtra(OfframpError, ImportError):
    """A feature was used whose optional dependencies are not installed."""


class UnknownName(OfframpError, ValueError):
    """No task, metric, rule, recipe, backbone or class has this name."""


class BadData(OfframpError, ValueError):
    """A file, row, text or trace is not what was expected; the message says which one."""


class BadLabels(BadData):
    """Labels that the model does not have, or not one for each text."""


class BadOption(OfframpError, ValueError):
    """An argument, flag or request option is out of range or contradicts another one."""


class BadConfig(OfframpError, ValueError):
    """A model config is invalid, or was written by a newer version."""


class BadPolicy(OfframpError, ValueError):
    """A policy is invalid: an unknown rule or option, a value out of range, rungs in the wrong order."""


class Incompatible(OfframpError):
    """A rule, recipe, tokenizer or export target does not work with this model."""


class CannotLoad(OfframpError):
    """A model, checkpoint or download is missing, damaged or unsafe to read."""


class OutputExists(OfframpError):
    """The output path already exists and is not overwritten."""


class NoSafeThreshold(OfframpError):
    """No threshold meets the target on this trace; the message says what would help."""

    def __init__(self, message: str, examples_needed: int | None = None, group: str = "") -> None:
        super().__init__(message)
        self.examples_needed = examples_needed
        """The number of examples that would have been enough, where more examples help."""
        self.group = group
        """With bounds by group, such as a class: the one that needs more examples."""


class NotFinite(OfframpError):
    """The model returned NaN or infinity where a prediction is required."""


class TooLarge(OfframpError):
    """A request exceeds a hard limit of the server, at any load."""


class Overloaded(OfframpError):
    """The server has no capacity for this request right now."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Estimated seconds until the current queue is processed."""


class Draining(OfframpError):
    """The server is shutting down and accepts no new requests."""


class RunFailed(OfframpError):
    """Accepted work (a request, a cluster job) failed while running; `__cause__` has the reason."""


class ReusedData(UserWarning):
    """The same data selected the rule and its threshold, so the measured score is optimistic."""


class NoSampleTexts(UserWarning):
    """int8 scales come from built-in sentences instead of texts like those that the model will run on."""


class CertificateMismatch(UserWarning):
    """The certificate was issued for a different policy, model or precision."""


def extra_with(module: str | None) -> str | None:
    """The extra that installs a module.

    >>> extra_with("sklearn.linear_model"), extra_with("json")
    ('measure', None)
    """
    top = (module or "").split(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules.split()), None)


def is_installed(extra: str) -> bool:
    return all(find_spec(module) for module in EXTRAS[extra].split())


@contextmanager
def explain_missing(feature: str) -> Iterator[None]:
    """`MissingExtra` for a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (extra := extra_with(error.name)) is None:
            raise
        raise MissingExtra(f"{feature} {install_hint(error.name, extra)}", name=error.name) from error


def install_hint(module: str | None, extra: str) -> str:
    """The end of a message about a missing package.

    >>> install_hint("onnxruntime", "onnx")
    "needs onnxruntime: pip install 'offramp[onnx]', or in a checkout: pip install -c constraints.txt '.[onnx]'"
    """
    return (
        f"needs {module}: pip install 'offramp[{extra}]', "
        f"or in a checkout: pip install -c constraints.txt '.[{extra}]'"
    )
