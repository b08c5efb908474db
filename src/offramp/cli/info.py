"""offramp info: describe a model."""

import math
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from offramp.cli.command import Result
from offramp.errors import CannotLoad


def info(model: Annotated[str, Argument(help="Model folder, training run or hub name.")]) -> Result:
    """Describe a model.

    Prints its backbone, exits, head, labels, parameters, policy and certificate.

    \b
    Example:
        offramp info runs/mrpc
    """
    from offramp.folder import find_model, is_exported
    from offramp.folder.manifest import Manifest
    from offramp.guarantees.certificate import ARGMAX
    from offramp.model_info import ModelInfo
    from offramp.reports.table import short

    folder = find_model(model)
    found, runtime = ModelInfo.read(folder), "PyTorch"
    if is_exported(folder):
        manifest = Manifest.load(folder)
        found, runtime = manifest.check(found), f"ONNX Runtime, {manifest.precision}"
    values = {
        "folder": str(folder),
        "backbone": found.backbone,
        "layers": found.exits[-1],
        "exits": list(found.exits),
        "head": dict(found.head),
        "problem": found.problem,
        "labels": list(found.labels),
        "decide": str(found.decide) or ARGMAX,
        "runtime": runtime,
        "parameters": parameters(folder),
        "policy": None,
        "certificate": None,
    }
    shown = dict(values)
    if (policy := found.policy) is not None:
        values |= {"policy": str(policy), "certificate": policy.to_json()["certificate"]}
        shown |= {"policy": short(policy), "certificate": policy.certificate and policy.certificate.summary}
    width = max(map(len, shown)) + 2
    return Result(values, "\n".join(f"{name:{width}}{format_value(value)}" for name, value in shown.items()))


def parameters(folder: Path) -> int | None:
    """The number of weights, from the headers of the safetensors files; None for an exported model."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="numpy") as weights:
                total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise CannotLoad(f"{file} is damaged ({error}); save the model again.") from error
    return total or None


def format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
