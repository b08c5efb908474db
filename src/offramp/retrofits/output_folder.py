"""The output folder of a retrofit: its settings, so that only the same retrofit is resumed in it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from offramp.errors import OutputExists
from offramp.files import read_json, write_files

SETTINGS, LOCK, WORK = "settings.json", ".lock", "work"


@contextmanager
def open_output(home: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Create the output folder, or check that it holds the same retrofit, and keep others out of it.

    The settings are those that the exits and their outputs depend on, not what a policy is calibrated for.
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
        changed = [name for name, value in settings.items() if known.get(name) != value]
        if changed:
            raise OutputExists(
                f"{home} contains a different retrofit (other {', '.join(changed)}); choose another folder, or "
                "delete it."
            )
    write_files({file: json.dumps(settings, indent=1)})


def check_work(home: Path) -> None:
    """Another policy for a finished retrofit needs what its exits predicted."""
    if not (home / WORK).exists():
        raise OutputExists(
            f"{home} has another guarantee, rule, precision or ladder, and its folder {WORK}, from which it could be "
            "calibrated again, was deleted; retrofit into another folder, or trace new texts and use "
            "`offramp calibrate`."
        )
