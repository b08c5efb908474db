"""Hashes of training texts, saved with a model, by which calibration recognizes rows that it was trained on."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from offramp.errors import CannotLoad
from offramp.files import atomic_file
from offramp.problems import Array

FILE = "training_rows.npy"


def hash_rows(texts: Iterable[str | tuple[str, ...]]) -> Array:
    """(rows,) uint64 of each text or pair; case and the amount of white space make no difference.

    >>> first, second, third = hash_rows(["A good\\tfilm ", "a good film", ("a good", "film")])
    >>> bool(first == second), bool(first == third)
    (True, False)
    """
    digests = [hash_row(*([text] if isinstance(text, str) else text)) for text in texts]
    return np.frombuffer(b"".join(digests), np.uint64)


def hash_batch(columns: Mapping[str, Any]) -> Array:
    """(rows,) uint64 of the columns `text` and maybe `text_pair`."""
    pairs = columns.get("text_pair")
    return hash_rows(columns["text"] if pairs is None else zip(columns["text"], pairs, strict=True))


def hash_row(*texts: str) -> bytes:
    plain = "\0".join(" ".join(text.lower().split()) for text in texts)
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def save_hashes(folder: Path, hashes: Array) -> None:
    with atomic_file(folder / FILE) as draft:
        np.save(draft, np.unique(hashes))


def load_hashes(folder: Path) -> Array | None:
    """The hashes of all training rows, sorted; None for a model without them."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        found: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CannotLoad(f"{file} is damaged ({error}); train or export the model again.") from error
    if found.dtype != np.uint64 or found.ndim != 1:
        raise CannotLoad(f"{file} does not hold hashes; train or export the model again.")
    return found
