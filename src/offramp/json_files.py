"""Reading JSON files, and the name of one that both training and model folders know."""

import json
from pathlib import Path
from typing import Any

from offramp.errors import CannotLoad

SCORES = "scores.json"
"""The scores of every exit of a trained model."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else in the file is a `CannotLoad`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CannotLoad(f"{path} cannot be read ({reason}); save or copy the model again.") from error
    if not isinstance(record, dict):
        raise CannotLoad(f"{path} cannot be read (not a JSON object); save or copy the model again.")
    return record
