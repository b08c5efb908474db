"""Finding, reading and loading a model folder."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from offramp.data.row_hashes import FILE
from offramp.errors import BadConfig, BadPolicy, CannotLoad, Incompatible, UnknownName
from offramp.files import explain_damage, finish_writes, read_json
from offramp.folder.manifest import CONFIG, MANIFEST, usable_tokenizer
from offramp.policy import Policy
from offramp.policy.ranking import RankRule
from offramp.problems import Problem, problem_named

if TYPE_CHECKING:
    from offramp.models.exit_model import ExitModel

REFERENCE = "reference"
"""The subfolder with the model whose predictions the certificate protects, if it is not this one at full depth."""
DOWNLOADED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.md", "*.onnx", "weights.bin", FILE]


@dataclass(frozen=True)
class ModelInfo:
    """The contents of config.json, read without torch."""

    exits: tuple[int, ...]
    """The layer of each exit; 0 is before the first layer."""
    labels: tuple[str, ...]
    """In the order of the logits."""
    problem_type: Problem
    head: Mapping[str, Any]
    encoder: Mapping[str, Any]
    """The config of the encoder."""
    policy: Policy | None
    policy_target: str | None = None
    """The flags of `offramp calibrate` that the policy was found with; None if unknown."""
    rank_rule: RankRule | None = None
    """Of a reranker."""
    trained_length: int | None = None
    """The number of tokens that texts were truncated to in training; None if unknown."""
    trained_on_pairs: bool | None = None
    """Whether training had pairs of texts; None if unknown."""

    @classmethod
    def read(cls, folder: str | PathLike[str], replaces_policy: bool = False) -> Self:
        """The info of a model folder. A stored policy that cannot run is an error, or left out if the caller replaces
        it."""
        file = Path(folder) / CONFIG
        finish_writes(file.parent)
        config = read_json(file)
        if config.get("model_type") != "offramp":
            raise no_exits(folder, config.get("model_type"))
        with explain_config(file):
            rule = config.get("rank_rule")
            found = cls(
                exits=tuple(config["exits"]),
                labels=read_labels(config),
                problem_type=problem_named(config["problem_type"]),
                head=config["head"],
                encoder=config["encoder_config"],
                policy=None,
                policy_target=config.get("policy_target"),
                rank_rule=None if rule is None else RankRule.from_json(rule),
                trained_length=config.get("trained_length"),
                trained_on_pairs=config.get("trained_on_pairs"),
            )
            found.check()
            try:
                found = found.with_policy(config["policy"])
            except (BadPolicy, Incompatible, UnknownName) as error:
                if not replaces_policy:
                    replace_it = f"Replace it with `offramp calibrate {folder} --policy never`."
                    raise CannotLoad(f"{file}: the stored policy: {error} {replace_it}") from error
        return found

    def check(self) -> None:
        """Refuse values that contradict each other or have the wrong type."""
        exits, layers = self.exits, self.encoder.get("num_hidden_layers", self.encoder.get("n_layers"))
        if not all(type(layer) is int and layer >= 0 for layer in exits) or not exits:
            raise BadConfig(f"exits={[*exits]} are not layers")
        if list(exits) != sorted({*exits}) or exits[-1] != layers:
            raise BadConfig(f"exits={[*exits]} must increase up to the last of {layers} layers")
        if not isinstance(self.encoder["model_type"], str) or type(self.head["gate"]) is not bool:
            raise BadConfig("encoder_config has no model_type, or head no gate")
        heads = self.encoder.get("num_attention_heads", self.encoder.get("n_heads"))
        if isinstance(heads, int) and heads < 1:
            raise BadConfig(f"num_attention_heads={heads} is not a number of heads")
        padding = self.encoder.get("pad_token_id")
        if isinstance(padding, int) and padding < 0:
            raise BadConfig(f"pad_token_id={padding} is not a token")
        length = self.trained_length
        if not (length is None or (type(length) is int and length > 0)):
            raise BadConfig(f"trained_length={length!r} is not a number of tokens")
        if self.trained_on_pairs not in (None, True, False):
            raise BadConfig(f"trained_on_pairs={self.trained_on_pairs!r} is neither true nor false")
        if self.rank_rule is not None:
            self.rank_rule.check(self.exits, self.labels, self.problem_type)

    def with_policy(self, record: Mapping[str, Any] | None) -> Self:
        """With a stored policy; an error if the model cannot run it."""
        if record is None:
            return self
        policy = Policy.from_json(record)
        found = replace(self, policy=policy)
        found.check_policy(policy)
        return found

    @property
    def backbone(self) -> str:
        return str(self.encoder["model_type"])

    def check_tokenizer(self, folder: Path, tokenizer: Any) -> None:
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
        known, known_types = self.encoder.get("vocab_size"), self.encoder.get("type_vocab_size")
        if isinstance(known, int) and tokens >= known:
            raise CannotLoad(
                f"{folder}: the tokenizer has the token {tokens}, the model only {known} tokens; "
                "save the model with its own tokenizer."
            )
        if uses_types and known_types and isinstance(known_types, int) and types >= known_types:
            raise CannotLoad(
                f"{folder}: the tokenizer has the token type {types}, the model only {known_types} types; fix "
                "tokenizer.json, or leave token_type_ids out of model_input_names in tokenizer_config.json."
            )

    def check_policy(self, policy: Policy | str) -> Policy:
        """The policy, with its classes resolved and, if its rule learns, fitted as the stored one.

        A policy that this model cannot run is an error.
        """
        policy = Policy.resolve(policy, self.policy)
        policy.check(self.exits, self.problem_type, bool(self.head.get("gate")))
        return policy


@contextmanager
def explain_config(file: Path) -> Iterator[None]:
    """`CannotLoad` for a config that is incomplete or contradicts itself."""
    try:
        yield
    except KeyError as missing:
        raise CannotLoad(f"{file} has no {missing}; save or export the model again.") from None
    except (BadPolicy, Incompatible) as error:
        raise CannotLoad(f"{file}: the stored rank rule: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CannotLoad(f"{file}: {error}; save or export the model again.") from error


def read_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the labels, in the order of the logits."""
    # transformers leaves out the names of two labels that have none
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = tuple(names[str(index)] for index in range(len(names)))
    indices = config.get("label2id") or {label: index for index, label in enumerate(labels)}
    if not all(isinstance(label, str) for label in labels) or indices.keys() != {*labels}:
        raise BadConfig(f"id2label={names} and label2id={indices} disagree")
    return labels


def find_model(name: str, revision: str | None = None, replaces_policy: bool = False) -> Path:
    """The folder of a model, given that folder, its training run, or its name on the hub."""
    given = Path(name)
    folder = next((place for place in (given, given / "model") if (place / CONFIG).is_file()), None)
    if folder is None:
        if given.exists() or is_path(name):
            raise CannotLoad(f"{name}: no model found; expected a folder with {CONFIG}.")
        folder = download(name, revision)
    ModelInfo.read(folder, replaces_policy)
    return folder


def megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e6, 1)


def is_path(name: str) -> bool:
    """Whether this cannot be a name on the hub."""
    in_a_folder = "/" in name and Path(name).parent.is_dir()  # runs/nope, where runs is here
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or in_a_folder


def is_exported(path: str | PathLike[str]) -> bool:
    """Whether this is a folder that `export` wrote."""
    return (Path(path) / MANIFEST).is_file()


def check_reachable(name: str) -> None:
    """Refuses a model that is neither here nor on the hub at once; transformers retries for half a minute."""
    if not Path(name).is_dir():
        if is_path(name):
            raise CannotLoad(f"{name}: no such folder.")
        download(name, files=[CONFIG])


def download(name: str, revision: str | None = None, files: Sequence[str] = DOWNLOADED) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*files]))
    except Exception as error:  # huggingface_hub raises many types
        reason = str(error).strip().partition("\n")[0]
        raise CannotLoad(f"{name} is not a folder here and could not be downloaded ({reason}).") from error


def load_model(path: str | PathLike[str], tokenizer: Any = None, **options: Any) -> tuple["ExitModel", Any]:
    """A saved model in PyTorch, and its tokenizer unless one is given.

    `options` go to transformers' `from_pretrained`, such as `dtype`; `revision` is that of a model on the hub.
    """
    from offramp.models.exit_model import ExitModel

    folder = find_model(os.fspath(path), options.pop("revision", None))
    info = ModelInfo.read(folder)
    model = ExitModel.from_pretrained(folder, **options)
    if model.config.head != info.head:  # absent options would get defaults
        raise CannotLoad(f"{folder / CONFIG}: head={info.head} is incomplete; save the model again.")
    if tokenizer is None:
        tokenizer = load_tokenizer(folder)
        info.check_tokenizer(folder, tokenizer)
    return model, tokenizer


def load_tokenizer(path: str | PathLike[str], **options: Any) -> Any:
    from transformers import AutoTokenizer

    with explain_damage(path):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
    # transformers makes one up if there is no file
    if {*tokenizer.get_vocab()} <= {*tokenizer.all_special_tokens}:
        raise CannotLoad(f"{path} has no tokenizer; save it there with tokenizer.save_pretrained.")
    return tokenizer


def no_exits(path: str | PathLike[str], kind: str | None) -> CannotLoad:
    return CannotLoad(
        f"{path} is a {kind} model without exits; add exits and train them, with `offramp train` or "
        "ExitModel.from_encoder."
    )
