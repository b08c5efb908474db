"""Helpers that several benchmarks use."""

import csv
import platform
from pathlib import Path
from typing import Any


def read_texts(path: Path) -> list[str]:
    """One text per line, or the column `sentence` or `text` of a .tsv."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix != ".tsv":
            return [line.strip() for line in file if line.strip()]
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row.get("sentence") or row["text"] for row in rows]


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def last_exit_only(model: Any) -> Any:
    """The same model with only its last exit, like a plain classifier."""
    from offramp.models.config import ExitConfig
    from offramp.models.exit_model import ExitModel

    exits = model.config.exits
    values = model.config.to_dict() | {"exits": [exits[-1]], "policy": None}
    values["head"]["classifier"] = "own"
    plain, last = ExitModel(ExitConfig(**values)), model.heads.head_of(len(exits) - 1)
    plain.backbone = model.backbone
    if last.pooler is not None:
        plain.heads.poolers[0] = last.pooler
    if last.hidden is not None:
        plain.heads.hidden[0] = last.hidden
    plain.heads.classifiers[0] = last.classifier
    plain.train(False)
    return plain
