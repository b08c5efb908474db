"""stages.json and tokenizer.json of an exported folder, read without torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from offramp.errors import CannotLoad, Incompatible

FORMAT = 1
MANIFEST, CONFIG, TOKENIZER = "stages.json", "config.json", "tokenizer.json"


@dataclass(frozen=True)
class Manifest:
    """What a runtime needs to know about an exported model, besides config.json."""

    precision: str
    """The number format of the layers: "fp32" or "int8"."""
    embedding: str
    """The file of the embedding graph: tokens to hidden states."""
    stages: tuple[str, ...]
    """The file of each stage's graph; identical stages share one."""
    max_length: int
    """The number of positions of the model, in tokens."""
    padding: int
    """The id of the padding token."""
    shape: Mapping[str, int]
    """Sizes of the backbone, from which its MACs are counted."""
    fingerprint: str
    """The fingerprint of the model that was exported."""
    tokenizer: Mapping[str, Any]
    """The fields of `SavedTokenizer` that tokenizer.json lacks."""
    made_with: Mapping[str, str]
    """Versions of the packages that wrote the graphs."""
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a manifest and check that the files it names exist."""
        record = read_json(folder / MANIFEST)
        if record.get("format", 0) > FORMAT:
            raise CannotLoad(f"{folder} was written by a newer offramp; upgrade offramp to read it.")
        missing = {field.name for field in fields(cls)} - record.keys()
        if missing:
            raise CannotLoad(
                f"{folder / MANIFEST} has no {', '.join(sorted(missing))}; export the model again."
            )
        found = cls(**record | {"stages": tuple(record["stages"])})
        for name in (CONFIG, TOKENIZER, found.embedding, *found.stages):
            if not (folder / name).is_file():
                raise CannotLoad(f"{folder / name} is missing; export the model again.")
        return found


@dataclass(frozen=True)
class SavedTokenizer:
    """tokenizer.json, and the settings that a transformers tokenizer keeps beside it, under the same names."""

    backend_tokenizer: Tokenizer
    model_max_length: int
    truncation_side: str
    model_input_names: list[str]
    pad_token_id: int

    @classmethod
    def load(cls, folder: Path, settings: Mapping[str, Any]) -> Self:
        try:
            return cls(Tokenizer.from_file(str(folder / TOKENIZER)), **settings)
        except Exception as error:  # tokenizers raises no narrower type
            raise Incompatible(
                f"{folder / TOKENIZER} cannot be used ({error}); export the model again."
            ) from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CannotLoad(f"{path} cannot be read ({error}); save or export the model again.") from error
