"""Model folders, saved or exported: finding, loading, copying and uploading them.

config.json        backbone, exits, head, labels and policy; in every model folder (`ModelInfo`)
stages.json        the ONNX graphs of an exported model (`Manifest`)
README.md          the model card, written from the other files (`reports/card.py`)
training_rows.npy  hashes of the texts it was trained on (`offramp.row_hashes`)
scores.json        the scores of every exit, from training
curve.json         score and cost of the policy's rule, from calibration
retrofit.json      the comparison with the original model, from a retrofit
reference/         the model whose predictions the certificate protects, if it is not this one at full depth
"""

import os
import shutil
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import BadOption, CannotLoad
from offramp.files import atomic_folder, explain_damage
from offramp.folder.manifest import MANIFEST, usable_tokenizer
from offramp.model_info import CONFIG, ModelInfo
from offramp.row_hashes import FILE

if TYPE_CHECKING:
    from offramp.models.exit_model import ExitModel

REFERENCE = "reference"
"""The subfolder with the model whose predictions the certificate protects, if it is not this one at full depth."""
DOWNLOADED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.md", "*.onnx", "weights.bin", FILE]


def find_model(name: str, revision: str | None = None) -> Path:
    """The folder of a model, given that folder, its training run, or its name on the hub."""
    if not name.strip():
        raise CannotLoad(
            "the name of the model is empty; give a folder with a model, or its name on the hub."
        )
    for folder in (Path(name), Path(name) / "model"):
        if (folder / CONFIG).is_file():
            return folder
    if Path(name).exists() or is_path(name):
        raise CannotLoad(f"{name}: no model found; expected a folder with {CONFIG}.")
    return download(name, revision)


def megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e6, 1)


def is_path(name: str) -> bool:
    """Whether this cannot be a name on the hub."""
    in_a_folder = "/" in name and Path(name).parent.is_dir()  # runs/nope, where runs is here
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or in_a_folder


def is_exported(path: str | PathLike[str]) -> bool:
    """Whether this is a folder that `export` wrote."""
    return (Path(path) / MANIFEST).is_file()


def find_source(name: str) -> str:
    """The folder of a model, given that folder, a training run or a retrofit, or the model's name on the hub.

    A model that is neither here nor there is refused at once; transformers retries for half a minute.
    """
    folder = Path(name)
    if folder.is_dir():
        is_run = not (folder / CONFIG).is_file() and (folder / "model" / CONFIG).is_file()
        return str(folder / "model") if is_run else name
    if is_path(name):
        raise CannotLoad(f"{name}: no such folder.")
    download(name, files=[CONFIG])
    return name


def download(name: str, revision: str | None = None, files: Sequence[str] = DOWNLOADED) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*files]))
    except Exception as error:  # huggingface_hub raises many types
        reason = str(error).strip().partition("\n")[0]
        raise CannotLoad(f"{name} is not a folder here and could not be downloaded ({reason}).") from error


def copy_model(source: Path | None, path: str | PathLike[str]) -> None:
    """Copies a model folder; the new one is written completely or not at all."""
    source = require_folder(source)
    with atomic_folder(Path(path)) as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True)


def push_model(source: Path | None, repo_id: str, **options: Any) -> str:
    """Uploads a model folder to the Hugging Face Hub, and returns the address of the commit."""
    from huggingface_hub import HfApi

    source, token, private = require_folder(source), options.pop("token", None), options.pop("private", None)
    api = HfApi(token=token)
    try:
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repo.repo_id, folder_path=source, **options).commit_url)
    except Exception as error:  # huggingface_hub raises many types
        reason = str(error).strip().partition("\n")[0]
        raise BadOption(
            f"{repo_id} could not be uploaded ({reason}); log in with `hf auth login`, or pass token=..."
        ) from error


def require_folder(source: Path | None) -> Path:
    if source is None:
        raise BadOption(
            "this model was not loaded from a folder; save the ExitModel and its tokenizer with their own "
            "save_pretrained, and load that folder."
        )
    return source


def load_model(path: str | PathLike[str], tokenizer: Any = None, **options: Any) -> tuple["ExitModel", Any]:
    """A saved model in PyTorch, and its tokenizer unless one is given.

    `options` go to transformers' `from_pretrained`, such as `dtype`; `revision` is that of a model on the hub.
    """
    from offramp.models.exit_model import ExitModel

    folder = find_model(os.fspath(path), options.pop("revision", None))
    info = ModelInfo.read(folder)
    if is_exported(folder):
        raise CannotLoad(
            f"{folder} is exported, so it has no weights for PyTorch; use the model that it was made from. Only "
            "`offramp export --portable` takes an exported one."
        )
    model = ExitModel.from_pretrained(folder, **options)
    if model.config.head != info.head:  # absent options would get defaults
        raise CannotLoad(f"{folder / CONFIG}: head={info.head} is incomplete; save the model again.")
    if tokenizer is None:
        tokenizer = load_tokenizer(folder)
        check_tokenizer(info, folder, tokenizer)
    return model, tokenizer


def load_tokenizer(path: str | PathLike[str], **options: Any) -> Any:
    from transformers import AutoTokenizer

    with explain_damage(path):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
    # transformers makes one up if there is no file
    if {*tokenizer.get_vocab()} <= {*tokenizer.all_special_tokens}:
        raise CannotLoad(f"{path} has no tokenizer; save it there with tokenizer.save_pretrained.")
    return tokenizer


def check_tokenizer(info: ModelInfo, folder: Path, tokenizer: Any) -> None:
    """Refuse a tokenizer that gives tokens or token types without an embedding in the model."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is None:
        return
    with usable_tokenizer(f"{folder}: the tokenizer"):
        probes = rust.encode_batch(["a", ("a", "b")])
        uses_types = "token_type_ids" in tokenizer.model_input_names
    # a probe has the special tokens, whose ids are stored apart from the vocabulary
    tokens = max([*rust.get_vocab().values(), *(id for probe in probes for id in probe.ids)], default=0)
    types = max((id for probe in probes for id in probe.type_ids), default=0)
    most, most_types = info.encoder.get("vocab_size"), info.encoder.get("type_vocab_size")
    if isinstance(most, int) and tokens >= most:
        raise CannotLoad(
            f"{folder}: the tokenizer has the token {tokens}, the model only {most} tokens; "
            "save the model with its own tokenizer."
        )
    if uses_types and most_types and isinstance(most_types, int) and types >= most_types:
        raise CannotLoad(
            f"{folder}: the tokenizer has the token type {types}, the model only {most_types} types; fix "
            "tokenizer.json, or leave token_type_ids out of model_input_names in tokenizer_config.json."
        )
