"""stages.json: what an exported folder holds besides config.json, which it shares with every model.

config.json tells exits, labels, kind of problem, head and policy; `Manifest` the graphs and how they were made.
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
    """An exported model, as a runtime without torch needs to know it."""

    precision: str
    """What the layers compute in: "fp32" or "int8"."""
    embedding: str
    """The file of the graph from tokens to hidden states."""
    stages: tuple[str, ...]
    """The file of each stage's graph; stages that are alike share one."""
    max_length: int
    """Tokens that the model can tell the places of."""
    padding: int
    """The id of the token to pad with."""
    shape: Mapping[str, int]
    """Sizes of the backbone, for counting its work."""
    fingerprint: str
    """Of the model that was exported."""
    tokenizer: Mapping[str, Any]
    """What tokenizer.json does not say: where texts are cut, and what the model is told."""
    made_with: Mapping[str, str]
    """Versions of the packages that wrote the graphs."""
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a manifest, and makes sure that the files it names are there."""
        record = read(folder / MANIFEST)
        if record.get("format", 0) > FORMAT:
            raise CannotLoad(f"{folder} was written by a newer offramp; upgrade offramp to read it.")
        missing = {field.name for field in fields(cls)} - record.keys()
        if missing:
            raise CannotLoad(
                f"{folder / MANIFEST} lacks {', '.join(sorted(missing))}; export the model again."
            )
        found = cls(**record | {"stages": tuple(record["stages"])})
        for name in (CONFIG, TOKENIZER, found.embedding, *found.stages):
            if not (folder / name).is_file():
                raise CannotLoad(f"{folder} names {name}, which is not there; export the model again.")
        return found


def is_exported(path: Any) -> bool:
    """Whether this is a folder that `export` wrote."""
    return (Path(path) / MANIFEST).is_file()


def read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{path} cannot be read ({error}); export the model again.") from error
