"""stages.json: the graphs of an exported model and how they were made.

Exits, labels, problem type, head and policy are in config.json, as in every saved model.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from offramp.errors import CannotLoad

FORMAT = 1
MANIFEST, CONFIG, TOKENIZER = "stages.json", "config.json", "tokenizer.json"


@dataclass(frozen=True)
class Manifest:
    """What a runtime without torch needs to run an exported model."""

    precision: str
    """The precision of the layers: "fp32" or "int8"."""
    embedding: str
    """File name of the graph from tokens to hidden states."""
    stages: tuple[str, ...]
    """File name of each stage's graph; identical stages share one."""
    max_length: int
    """The most tokens an example may have."""
    padding: int
    """The id of the padding token."""
    shape: Mapping[str, int]
    """Sizes of the backbone, for counting MACs."""
    fingerprint: str
    """Fingerprint of the model that was exported."""
    tokenizer: Mapping[str, Any]
    """Settings that tokenizer.json lacks: truncation, model inputs, padding token."""
    made_with: Mapping[str, str]
    """Versions of the packages that wrote the graphs."""
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a manifest and check that the files it names exist."""
        record = read(folder / MANIFEST)
        if record.get("format", 0) > FORMAT:
            raise CannotLoad(f"{folder} was written by a newer offramp; upgrade offramp to read it.")
        missing = {field.name for field in fields(cls)} - record.keys()
        if missing:
            raise CannotLoad(
                f"{folder / MANIFEST} has no {', '.join(sorted(missing))}; export the model again."
            )
        manifest = cls(**record | {"stages": tuple(record["stages"])})
        for name in (CONFIG, TOKENIZER, manifest.embedding, *manifest.stages):
            if not (folder / name).is_file():
                raise CannotLoad(f"{folder / name} is missing; export the model again.")
        return manifest


def is_exported(path: Any) -> bool:
    """Whether `path` is a folder written by `export`."""
    return (Path(path) / MANIFEST).is_file()


def read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{path} cannot be read ({error}); export the model again.") from error
