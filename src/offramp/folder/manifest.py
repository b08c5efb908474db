"""stages.json and tokenizer.json of an exported folder, read without torch."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from offramp.errors import CannotLoad
from offramp.files import digest as hash_parts
from offramp.files import read_json
from offramp.guarantees.certificate import check_certificate
from offramp.model_info import CONFIG, ModelInfo
from offramp.policy import Policy

FORMAT = 4
MANIFEST, TOKENIZER = "stages.json", "tokenizer.json"
EMBEDDING, STAGES, WEIGHTS = "embedding.onnx", "stages.onnx", "weights.bin"
GRAPH = "onnx/model.onnx"
"""The model and its policy in one graph, at the place where other libraries look for it."""
PORTABLE = "portable"
"""The folder for other libraries that a retrofit writes beside its model."""
NEEDED = (MANIFEST, CONFIG, TOKENIZER)
NOT_HASHED = "policy", "policy_target", "decide"
"""The fields of config.json that may change after the export."""


@dataclass(frozen=True)
class Manifest:
    """What a runtime needs to know about an exported model, besides config.json."""

    precision: str
    """The number format of the layers: "fp32" or "int8"."""
    branches: tuple[int, ...]
    """The branch of the graph that runs each stage; identical stages share one. Empty in a portable folder, which has
    no graph but `GRAPH`."""
    max_length: int
    """The number of positions of the model, in tokens."""
    padding: int
    """The id of the padding token."""
    fingerprint: str
    """The fingerprint of the model that was exported."""
    tokenizer: Mapping[str, Any]
    """The fields of `SavedTokenizer` that tokenizer.json lacks."""
    made_with: Mapping[str, str]
    """Versions of the packages that wrote the graphs."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """A hash of each file, written by `save`."""
    exported_weights: str | None = None
    """In a portable folder, `stage_weights` of the exported one that it was made from."""
    format: int = FORMAT

    def save(self, folder: Path) -> Self:
        """Write stages.json, with hashes of the files in the folder, which must be complete."""
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        files = sorted({path.relative_to(folder).as_posix() for path in paths} - {MANIFEST})
        return self.sign(folder, {name: digest(folder / name) for name in files})

    def add(self, folder: Path, name: str) -> Self:
        """Write stages.json with the hash of one more file."""
        return self.sign(folder, {**self.digests, name: digest(folder / name)})

    def sign(self, folder: Path, digests: Mapping[str, str]) -> Self:
        signed = replace(self, digests={name: digests[name] for name in sorted(digests) if name != MANIFEST})
        signed.write(folder)
        signed = replace(signed, digests={**signed.digests, MANIFEST: digest(folder / MANIFEST)})
        signed.write(folder)
        return signed

    @property
    def weights(self) -> str:
        """A hash of all graphs here and their weights, which a certificate names."""
        return hash_of_graphs(self.digests)

    @property
    def stage_weights(self) -> str:
        """A hash of the stages and their weights, which the one graph of a portable folder names."""
        if self.exported_weights is not None:
            return self.exported_weights
        return hash_of_graphs({name: value for name, value in self.digests.items() if name != GRAPH})

    def bind(self, policy: Policy) -> Policy:
        """The policy for this folder: its certificate, if that is for this model, also names the weights here."""
        policy = check_certificate(policy, self.fingerprint, self.precision)
        if policy.certificate is None or policy.certificate.conditions is None:
            return policy
        conditions = replace(policy.certificate.conditions, weights=self.weights)
        return replace(policy, certificate=replace(policy.certificate, conditions=conditions))

    def check(self, info: ModelInfo) -> ModelInfo:
        """The info, without a certificate that was issued for another model, or stored for other weights."""
        if info.policy is None:
            return info
        policy = check_certificate(
            info.policy,
            self.fingerprint,
            self.precision,
            weights=self.weights,
            decision=str(info.decide),
        )
        return replace(info, policy=policy)

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a manifest, and check that the folder holds the files that `save` found there."""
        file = folder / MANIFEST
        record = read_json(file)
        if record.get("format", FORMAT) != FORMAT:
            raise CannotLoad(
                f"{file} has format {record['format']!r}, and this offramp reads {FORMAT}; upgrade offramp, or "
                "export the model again."
            )
        expected = {field.name for field in fields(cls)}
        wrong = sorted(expected ^ record.keys())
        if wrong:
            fault = "has no" if wrong[0] in expected else "has an unknown field"
            raise CannotLoad(f"{file} {fault} {wrong[0]}; export the model again.")
        for name, kinds in MANIFEST_TYPES.items():
            if not isinstance(record[name], kinds) or isinstance(record[name], bool):
                raise CannotLoad(f"{file}: {name} is {record[name]!r}; export the model again.")
        branches = record["branches"]
        if not all(isinstance(branch, int) and not isinstance(branch, bool) for branch in branches):
            raise CannotLoad(f"{file}: branches is {branches!r}; export the model again.")
        graphs = (EMBEDDING, STAGES) if branches else (GRAPH,)
        check_files(folder, record["digests"], (*NEEDED, *graphs))
        return cls(**record | {"branches": tuple(branches)})


def hash_of_graphs(digests: Mapping[str, str]) -> str:
    graphs = sorted(item for item in digests.items() if item[0].endswith((".onnx", ".bin")))
    return hash_parts([json.dumps(graphs).encode()])


MANIFEST_TYPES = {
    "precision": str,
    "branches": list,
    "max_length": int,
    "padding": int,
    "fingerprint": str,
    "tokenizer": dict,
    "digests": dict,
}


def check_files(folder: Path, digests: Mapping[str, str], needed: Sequence[str]) -> None:
    """Files of this folder only, each as it was when the folder was written."""
    names = dict.fromkeys([*digests, *needed])
    for name in names:
        if {"", ".", ".."} & {*name.split("/")} or "\\" in name or Path(name).is_absolute():
            raise CannotLoad(f"{folder / MANIFEST} names {name!r}, which is not a file of its folder.")
    for name in names:
        if not (folder / name).is_file():
            raise CannotLoad(f"{folder / name} is missing; export the model again.")
        if digests.get(name) != digest(folder / name):
            raise CannotLoad(f"{folder / name} is not the file that was exported; export the model again.")
    if GRAPH not in names and (folder / GRAPH).exists():
        raise CannotLoad(
            f"{folder / GRAPH} is not one of the files that were exported; remove it, or export or retrofit the "
            "model again."
        )


def digest(path: Path) -> str:
    """A hash of a file, without what may change in it."""
    if path.name in (CONFIG, MANIFEST):
        record = {key: value for key, value in read_json(path).items() if key not in NOT_HASHED}
        if isinstance(digests := record.get("digests"), dict):
            digests.pop(MANIFEST, None)
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class SavedTokenizer:
    """tokenizer.json, and the settings that a transformers tokenizer keeps beside it, under the same names."""

    backend_tokenizer: Tokenizer
    model_max_length: int
    truncation_side: str
    model_input_names: list[str]
    pad_token_id: int
    unk_token_id: int | None = None

    @classmethod
    def load(cls, folder: Path, settings: Mapping[str, Any]) -> Self:
        with usable_tokenizer(folder / TOKENIZER):
            tokenizer = cls(Tokenizer.from_file(str(folder / TOKENIZER)), **settings)
        return tokenizer


@contextmanager
def usable_tokenizer(name: str | Path) -> Iterator[None]:
    """`CannotLoad` for whatever a damaged tokenizer raises: also a panic in Rust, which is not an Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise CannotLoad(f"{name} cannot be used ({error}); save or export the model again.") from error
