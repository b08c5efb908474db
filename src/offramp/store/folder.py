"""Finding, reading and loading a model folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from offramp.errors import CannotLoad
from offramp.policy import Policy
from offramp.store.manifest import CONFIG, MANIFEST, read_json

if TYPE_CHECKING:
    from offramp.model import ExitModel

DOWNLOADED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.md", "*.onnx", "weights.bin"]


@dataclass(frozen=True)
class ModelInfo:
    """The contents of config.json, read without torch."""

    exits: tuple[int, ...]
    """The layer of each exit; 0 is before the first layer."""
    labels: tuple[str, ...]
    """In the order of the logits."""
    problem_type: str
    head: Mapping[str, Any]
    encoder: Mapping[str, Any]
    """The config of the encoder."""
    policy: Policy | None

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Self:
        file = Path(folder) / CONFIG
        config = read_json(file)
        if config.get("model_type") != "offramp":
            raise no_exits(folder, config.get("model_type"))
        # transformers leaves out the names of two labels that have none
        names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        try:
            return cls(
                exits=tuple(config["exits"]),
                labels=tuple(names[index] for index in sorted(names, key=int)),
                problem_type=config["problem_type"],
                head=config["head"],
                encoder=config["encoder_config"],
                policy=Policy.from_json(config["policy"]) if config.get("policy") else None,
            )
        except KeyError as missing:
            raise CannotLoad(f"{file} has no {missing}; save or export the model again.") from None

    @property
    def backbone(self) -> str:
        return str(self.encoder["model_type"])

    def check_policy(self, policy: Policy | str) -> Policy:
        """The policy, with its classes resolved and, if its rule learns, fitted as the stored one.

        A policy that this model cannot run is an error.
        """
        policy = Policy.parse(policy) if isinstance(policy, str) else policy
        policy = policy.with_fit_of(self.policy)
        policy = policy.for_labels(self.labels) if policy.class_thresholds else policy
        policy.check(self.exits, self.problem_type, bool(self.head.get("gate")))
        return policy


def find_model(name: str) -> Path:
    """The folder of a model, given that folder, its training run, or its name on the hub."""
    given = Path(name)
    folder = next((place for place in (given, given / "model") if (place / CONFIG).is_file()), None)
    if folder is None:
        if given.exists() or is_path(name):
            raise CannotLoad(f"{name}: no model found; expected a folder with {CONFIG}.")
        folder = download(name)
    ModelInfo.read(folder)
    return folder


def is_path(name: str) -> bool:
    """Whether this cannot be a name on the hub."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def is_exported(path: str | PathLike[str]) -> bool:
    """Whether this is a folder that `export` wrote."""
    return (Path(path) / MANIFEST).is_file()


def download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=DOWNLOADED))
    except Exception as error:  # huggingface_hub raises many types
        raise CannotLoad(f"{name} is not a folder and could not be downloaded ({error}).") from error


def load_model(path: str | PathLike[str], tokenizer: Any = None, **options: Any) -> tuple["ExitModel", Any]:
    """A saved model in PyTorch, and its tokenizer unless one is given.

    `options` go to transformers' `from_pretrained`, such as `revision` or `dtype`.
    """
    from transformers import AutoConfig

    from offramp.config import ExitConfig
    from offramp.model import ExitModel

    revision = {"revision": options["revision"]} if "revision" in options else {}
    try:
        config = AutoConfig.from_pretrained(path, **revision)
        if not isinstance(config, ExitConfig):
            raise no_exits(path, config.model_type)
        tokenizer = tokenizer or load_tokenizer(path, **revision)
        return ExitModel.from_pretrained(path, **options), tokenizer
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{path}: {error}") from error


def load_tokenizer(path: str | PathLike[str], **options: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, **options)
    except (OSError, ValueError, ImportError) as error:
        raise CannotLoad(f"{path}: no tokenizer found ({error})") from error


def no_exits(path: str | PathLike[str], kind: str | None) -> CannotLoad:
    return CannotLoad(
        f"{path} is a {kind} model without exits; add exits and train them, with `offramp train` or "
        "ExitModel.from_encoder."
    )
