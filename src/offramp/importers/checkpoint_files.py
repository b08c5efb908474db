"""Files of a checkpoint -> tensors and config, without running what a pickle may hold."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from offramp.errors import CannotLoad

FILES = ("model.safetensors", "pytorch_model.bin")


def read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= read_file(file)
    return weights


def read_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")


def weight_files(folder: Path) -> list[Path]:
    """One file, or the shards that an index names; safetensors where there is a choice."""
    if not folder.is_dir():
        raise CannotLoad(
            f"no folder at {folder}; a checkpoint on the hub is downloaded first: hf download NAME --local-dir DIR"
        )
    for name in FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return shards(index)
    raise CannotLoad(f"{folder} has no weights; looked for {' and '.join(FILES)}, whole or in shards")


def shards(index: Path) -> list[Path]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(is_name(place) for place in places.values()):
        raise CannotLoad(f"{index} is no index of weights: its weight_map must give files of the same folder")
    return [index.parent / name for name in sorted(set(places.values()))]


def is_name(place: Any) -> bool:
    return isinstance(place, str) and Path(place).name == place


def read_file(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CannotLoad(f"{file} is missing")
    weights = read_safetensors(file) if file.suffix == ".safetensors" else read_pickle(file)
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise CannotLoad(f"{file} holds something else than tensors by name; save the model's state_dict()")
    return weights


def read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise CannotLoad(f"{file} is damaged: {error}") from error


def read_pickle(file: Path) -> Any:
    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged pickle can raise anything
        raise CannotLoad(
            f"{file} is refused: it is damaged, or it holds more than tensors, and reading such a pickle can "
            "run any code. If you trust it, load it where it was written and save its state_dict() as "
            "model.safetensors."
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CannotLoad(f"{file} is missing; it was saved beside the weights") from error
    except ValueError as error:
        raise CannotLoad(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CannotLoad(f"{file} must hold a JSON object")
    return values
