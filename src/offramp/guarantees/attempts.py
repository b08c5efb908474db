"""Attempts to prove something on the same texts, remembered in the user's cache (`XDG_CACHE_HOME`, `~/.cache`).

Each attempt may be wrong with the probability delta. Someone who tries until something is proven, or keeps the best
result, is wrong with the sum of these at most; so a certificate states the sum of its own and of all before it.
"""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from offramp.errors import CannotLoad, NoSafeThreshold
from offramp.files import digest, read_json, write_files
from offramp.problems import Array
from offramp.wording import count

FILE = "attempts.json"


@dataclass(frozen=True)
class Attempt:
    """An attempt to prove a guarantee; with the same settings again, it is the same attempt."""

    subject: str
    """Identifies the texts and the reference, see `subject_of`."""
    settings: Mapping[str, Any]
    """As JSON."""
    delta: float
    folder: Path | None = None
    """An existing folder that remembers attempts too, as the cache of another machine does not."""

    def spent(self) -> float:
        """The delta of all attempts before this one; if nothing is left, `NoSafeThreshold`."""
        attempts = self.attempts()
        before = attempts[: attempts.index(self.record)] if self.record in attempts else attempts
        spent = float(sum(attempt["delta"] for attempt in before))
        if spent + self.delta > 1 - 1e-9:
            raise NoSafeThreshold(
                f"{count(len(before), 'earlier attempt')} on these texts may be wrong with a probability of "
                f"{spent:.2g}, so one more would prove nothing. Calibrate on other texts."
            )
        return spent

    def describe(self) -> list[str]:
        """A line for people, if there were attempts before."""
        spent = self.spent()
        if not spent:
            return []
        return [
            f"earlier attempts on these texts may be wrong with a probability of {spent:.2g}, so the confidence of "
            f"this one is {1 - spent - self.delta:.0%}"
        ]

    @contextmanager
    def paid(self) -> Iterator[float]:
        """Remember this attempt, whether it proves something or not, unless it fails. The value is `spent()`."""
        spent = self.spent()
        try:
            yield spent
        except NoSafeThreshold:
            self.remember()
            raise
        self.remember()

    def remember(self) -> None:
        cached = self.files[0].parent
        try:
            cached.mkdir(parents=True, exist_ok=True)
            with FileLock(cached / ".lock"):
                self.write(self.files)
        except OSError as error:
            warnings.warn(
                f"this attempt cannot be remembered in {cached} ({error.strerror}), so later ones on the same texts "
                "would claim too much; set XDG_CACHE_HOME to a folder that can be written.",
                stacklevel=4,
            )
            self.write(self.files[1:])

    def write(self, files: Sequence[Path]) -> None:
        attempts = unique([*self.attempts(), self.record])
        for file in files:
            write_files({file: json.dumps({"attempts": attempts}, indent=1)})

    @property
    def record(self) -> dict[str, Any]:
        return {"delta": self.delta, **json.loads(json.dumps(self.settings))}

    @property
    def files(self) -> list[Path]:
        cached = cache_folder() / "attempts" / f"{self.subject}.json"
        return [cached] if self.folder is None else [cached, self.folder / FILE]

    def attempts(self) -> list[dict[str, Any]]:
        """All attempts, the first one first."""
        return unique([record for file in self.files for record in read(file)])


def read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        return [dict(record) for record in read_json(file)["attempts"]]
    except (CannotLoad, KeyError, TypeError, ValueError) as error:
        raise CannotLoad(f"{file} does not hold earlier attempts ({error}); delete it.") from error


def unique(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for index, record in enumerate(records) if record not in records[:index]]


def subject_of(texts: Array, model: str) -> str:
    """A hash of the hashes of texts, in any order, and of a model."""
    return digest([np.sort(texts).tobytes(), model.encode()])


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offramp"
