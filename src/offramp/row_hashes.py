"""Hashes of texts.

They show calibration which rows repeat, and which the model was trained on: those hashes are saved with it. Random
splits are drawn from them too.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from offramp.errors import CannotLoad
from offramp.files import atomic_file, digest
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


def split_rows(keys: Array, parts: Sequence[tuple[float, int]], together: bool = False) -> list[Array]:
    """Row numbers of random parts, each a share of the rows and the most that it has, and then of the rest.

    The draw depends on the keys alone: there is no seed to try, and the order of the rows does not matter. Rows with
    the same key are drawn apart, or `together`; the shares are then of the distinct keys.

    >>> [rows.tolist() for rows in split_rows(np.array([7, 7, 5, 5], np.uint64), [(0.5, 9)], together=True)]
    [[2, 3], [0, 1]]
    """
    units, unit_of_row = np.unique(keys, return_inverse=True)
    if not together:
        units, unit_of_row = np.sort(keys), np.empty(len(keys), int)
        unit_of_row[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    order = np.random.default_rng(int(digest([units.tobytes()]), 16)).permutation(len(units))
    ends = np.cumsum([min(int(share * len(units)), most) for share, most in parts])
    part = np.searchsorted(ends, np.argsort(order), side="right")[unit_of_row]
    return [np.flatnonzero(part == number) for number in range(len(parts) + 1)]


def save_hashes(folder: Path, hashes: Array) -> None:
    with atomic_file(folder / FILE) as draft:
        np.save(draft, np.unique(hashes))


def load_hashes(folder: Path) -> Array | None:
    """The hashes of all training rows, sorted; None for a model without them."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        hashes: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CannotLoad(f"{file} is damaged ({error}); train or export the model again.") from error
    if hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise CannotLoad(f"{file} does not hold hashes; train or export the model again.")
    return hashes
