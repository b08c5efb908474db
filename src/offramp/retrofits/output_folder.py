"""The output folder of a retrofit: its settings, so that only the same retrofit is resumed in it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from offramp.errors import OutputExists
from offramp.files import read_json, write_files
from offramp.guarantees import Certificate
from offramp.guarantees.attempts import Attempt, subject_of
from offramp.inference.texts import Text
from offramp.row_hashes import hash_rows

SETTINGS, LOCK = "settings.json", ".lock"
OF_CALIBRATION = ("guarantee", "rules", "ladder")
"""Settings that only the last steps depend on."""


@contextmanager
def open_output(home: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Create the output folder, or check that it holds the same retrofit, and keep others out of it.

    What a policy is calibrated for may change until there is one: the steps before do not depend on it.
    """
    files = (file for file in home.rglob("*") if file.is_file() and file.name != LOCK)
    if not (home / SETTINGS).exists() and any(files):
        raise OutputExists(f"{home} is not empty; choose another folder.")
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputExists(
            f"another retrofit is running in {home}; wait until it is done, or choose another folder."
        ) from None
    try:
        check_settings(home, settings)
        yield
    finally:
        lock.release()


def check_settings(home: Path, settings: Mapping[str, Any]) -> None:
    file, settings = home / SETTINGS, json.loads(json.dumps(settings))
    if file.exists():
        known = read_json(file)
        free = () if (home / "model").exists() else OF_CALIBRATION
        changed = [name for name, value in settings.items() if known.get(name) != value and name not in free]
        if changed:
            raise another_retrofit(home, changed)
    write_files({file: json.dumps(settings, indent=1)})


def another_retrofit(home: Path, changed: Sequence[str]) -> OutputExists:
    return OutputExists(
        f"{home} contains a different retrofit (other {', '.join(changed)}); choose another folder, or delete it."
    )


def check_same_guarantee(home: Path, certificate: Certificate, epsilon: float | Mapping[str, float]) -> None:
    """A finished retrofit is only returned to someone who asked for its certificate."""
    bounds = epsilon.values() if isinstance(epsilon, Mapping) else [epsilon]
    if {*bounds} != {*certificate.bounds().values()}:
        raise another_retrofit(home, ["epsilon of the certificate"])


def attempt_in(home: Path, texts: Sequence[Text], settings: Mapping[str, Any], delta: float) -> Attempt:
    """The attempt that a retrofit is; another folder or order of the same texts does not make them new."""
    others = {
        name: value for name, value in settings.items() if name not in ("model", "texts", "label_names")
    }
    return Attempt(subject_of(hash_rows(texts), settings["model"]), others, delta, home)
