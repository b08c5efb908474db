"""Models as commands are given them: a folder, the folder of a training run, or a name on the hub."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.cli.data import Known
from offramp.errors import BadConfig, CannotLoad

if TYPE_CHECKING:
    from offramp.policy import Policy

CONFIG = "config.json"


def find_model(name: str) -> Path:
    """The folder of a model with exits."""
    given = Path(name)
    folder = next((place for place in (given, given / "model") if (place / CONFIG).is_file()), None)
    if folder is None:
        if given.exists() or is_path(name):
            raise CannotLoad(
                f"{name}: no model there; expected a folder with {CONFIG} and model.safetensors."
            )
        folder = download(name)
    kind = read_config(folder).get("model_type")
    if kind != "offramp":
        raise CannotLoad(
            f"{name} is a {kind} model without exits; train some: offramp train {name} --task ... --out ..."
        )
    return folder


def is_path(name: str) -> bool:
    """Whether this cannot be a name on the hub."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=[
                    "*.json",
                    "*.txt",
                    "*.model",
                    "*.safetensors",
                    "*.md",
                    "*.onnx",
                    "weights.bin",
                ],
            )
        )
    except Exception as error:  # the hub's library raises many kinds, which all mean the same here
        raise CannotLoad(f"{name}: neither a folder nor a model that the hub gives out ({error})") from error


def read_config(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except ValueError as error:
        raise BadConfig(f"{folder / CONFIG} is not JSON ({error}); save the model again.") from error


def known(folder: Path) -> Known:
    """What the model in a folder answers with."""
    config = read_config(folder)
    labels = config.get("id2label") or {}
    names = [labels[key] for key in sorted(labels, key=int)]
    return Known(names, config["problem_type"], config["encoder_config"]["model_type"])


def stored_policy(folder: Path) -> "Policy | None":
    from offramp.policy import Policy

    record = read_config(folder).get("policy")
    return Policy.from_json(record) if record else None


def identity(folder: Path) -> tuple[str, str]:
    """Fingerprint and precision of the model in a folder."""
    from offramp.stages.manifest import Manifest, is_exported

    if is_exported(folder):
        manifest = Manifest.load(folder)
        return manifest.fingerprint, manifest.precision
    from offramp.stages.torch import precision_name

    model, _ = load(folder)
    return model.fingerprint(), precision_name(model.dtype)


def load(folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from transformers import AutoTokenizer

    from offramp.model import ExitModel

    try:
        return ExitModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{folder}: {error}") from error
