"""Files of a checkpoint -> tensors and config, without running code that a pickle may contain."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from offramp.errors import CannotLoad
from offramp.files import read_json

FILES = ("model.safetensors", "pytorch_model.bin")


def read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= read_file(file)
    return weights


def weight_files(folder: Path) -> list[Path]:
    """One file, or the shards in an index; safetensors if both formats are present."""
    if not folder.is_dir():
        raise CannotLoad(
            f"no folder at {folder}; download a checkpoint from the hub first: hf download NAME --local-dir DIR"
        )
    for name in FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return shards(index)
    raise CannotLoad(f"{folder} has no weights, expected {' or '.join(FILES)}, whole or in shards")


def shards(index: Path) -> list[Path]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in files.values()
    ):
        raise CannotLoad(
            f"{index} is not an index of weights: weight_map must map names to files in the same folder"
        )
    return [index.parent / name for name in sorted(set(files.values()))]


def read_file(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CannotLoad(f"{file} is missing")
    weights = read_safetensors(file) if file.suffix == ".safetensors" else read_pickle(file)
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise CannotLoad(f"{file} is not a dict of tensors; save the model's state_dict()")
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
            f"{file} is damaged, or contains more than tensors: loading such a pickle can run any code. If you "
            "trust it, load it with the code that wrote it and save its state_dict() as model.safetensors."
        ) from error
