"""offramp info: what a model is."""

import math
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from offramp.cli.command import Answer
from offramp.cli.models import find_model, read_config, stored_policy
from offramp.errors import CannotLoad


def info(model: Annotated[str, Argument(help="A model with exits.")]) -> Answer:
    """Tell what a model is.

    Backbone, exits, head, labels, parameters, policy and certificate.

    \b
    Example:
        offramp info runs/mrpc
    """
    folder = find_model(model)
    config = read_config(folder)
    policy = stored_policy(folder)
    encoder = config["encoder_config"]
    values = {
        "folder": str(folder),
        "backbone": encoder["model_type"],
        "layers": config["exits"][-1],
        "exits": config["exits"],
        "head": config["head"],
        "problem": config["problem_type"],
        "labels": list(config.get("id2label", {}).values()),
        "runtime": runtime(folder),
        "parameters": parameters(folder),
        "policy": None if policy is None else str(policy),
        "certificate": None if policy is None else policy.certificate,
    }
    return Answer(values, "\n".join(f"{name:12}{shown(value)}" for name, value in values.items()))


def runtime(folder: Path) -> str:
    from offramp.stages.manifest import Manifest, is_exported

    return f"ONNX Runtime, {Manifest.load(folder).precision}" if is_exported(folder) else "PyTorch"


def parameters(folder: Path) -> int | None:
    """Numbers in the weights, counted from the headers of the files; not told of an exported model."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="numpy") as weights:
                total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise CannotLoad(f"{file} is damaged ({error}); save the model again.") from error
    return total or None


def shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return str(value["promise"]) if "promise" in value else settings(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
