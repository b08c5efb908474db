"""The output folder of a retrofit: its settings, so that only the same retrofit is resumed in it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offramp.errors import NoSafeThreshold, OutputExists
from offramp.files import read_json, write_files

SETTINGS = "settings.json"
OF_CALIBRATION = ("guarantee", "rules", "rank_guarantee", "ladder")
"""Settings that only the last steps depend on."""


def open_output(home: Path, settings: Mapping[str, Any]) -> int:
    """Create the output folder, or check that it holds the same retrofit.

    What a policy is calibrated for may change until there is one: the steps before do not depend on it. Returns the
    number of such attempts, this one included: they use the same texts, so any of them may be wrong with the
    probability delta, and the guarantee of the last must allow for all.
    """
    file, settings = home / SETTINGS, json.loads(json.dumps(settings))
    refused: list[Any] = []
    if file.exists():
        found = read_json(file)
        free = () if (home / "model").exists() else OF_CALIBRATION
        changed = [name for name, value in settings.items() if found.get(name) != value and name not in free]
        if changed:
            raise OutputExists(
                f"{home} holds another retrofit ({', '.join(changed)} differ); choose another folder, or delete it."
            )
        refused = found.get("refused", [])
    elif any(path.is_file() for path in home.rglob("*")):
        raise OutputExists(f"{home} is not empty; choose another folder.")
    home.mkdir(parents=True, exist_ok=True)
    write_files({file: json.dumps({**settings, "refused": refused}, indent=1)})
    return 1 + len([each for each in refused if each != of_calibration(settings)])


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
