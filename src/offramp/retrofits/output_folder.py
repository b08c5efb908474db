"""The output folder of a retrofit: its settings, so that only the same retrofit is resumed in it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from offramp.errors import NoSafeThreshold, OutputExists
from offramp.files import read_json, write_files
from offramp.guarantees.certificate import Certificate

SETTINGS, LOCK = "settings.json", ".lock"
OF_CALIBRATION = ("guarantee", "rules", "ladder")
"""Settings that only the last steps depend on."""


@contextmanager
def open_output(home: Path, settings: Mapping[str, Any]) -> Iterator[int]:
    """Create the output folder, or check that it holds the same retrofit, and keep others out of it.

    The value is the number of this attempt. What a policy is calibrated for may change until there is one: the steps
    before do not depend on it. Attempts use the same texts, so any of them may be wrong with the probability delta,
    and the guarantee of the last must allow for all.
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
        yield register_attempt(home, settings)
    finally:
        lock.release()


def register_attempt(home: Path, settings: Mapping[str, Any]) -> int:
    file, settings = home / SETTINGS, json.loads(json.dumps(settings))
    refused: list[Any] = []
    if file.exists():
        known = read_json(file)
        free = () if (home / "model").exists() else OF_CALIBRATION
        changed = [name for name, value in settings.items() if known.get(name) != value and name not in free]
        if changed:
            raise another_retrofit(home, changed)
        refused = known.get("refused", [])
    write_files({file: json.dumps({**settings, "refused": refused}, indent=1)})
    return 1 + len([attempt for attempt in refused if attempt != of_calibration(settings)])


def another_retrofit(home: Path, changed: Sequence[str]) -> OutputExists:
    return OutputExists(
        f"{home} holds another retrofit ({', '.join(changed)} differ); choose another folder, or delete it."
    )


def check_same_guarantee(
    home: Path, certificate: Certificate, epsilon: float | Mapping[str, float], delta: float
) -> None:
    """A finished retrofit is only returned to someone who asked for its certificate."""
    bounds = epsilon.values() if isinstance(epsilon, Mapping) else [epsilon]
    same = {"epsilon": {*bounds} == {*certificate.bounds().values()}, "delta": delta == certificate.delta}
    changed = [f"{name} of the certificate" for name, is_same in same.items() if not is_same]
    if changed:
        raise another_retrofit(home, changed)


@contextmanager
def remembering_refusal(home: Path) -> Iterator[None]:
    """If nothing can be proven, the next attempt with other settings must know of this one."""
    try:
        yield
    except NoSafeThreshold:
        settings = read_json(home / SETTINGS)
        this = of_calibration(settings)
        if this not in settings["refused"]:
            settings["refused"].append(this)
            write_files({home / SETTINGS: json.dumps(settings, indent=1)})
        raise


def of_calibration(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in OF_CALIBRATION if name in settings and name != "ladder"}
