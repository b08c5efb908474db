"""Texts for benchmarks."""

import csv
from pathlib import Path


def read(path: Path) -> list[str]:
    """One text a line, or the column `sentence` or `text` of a .tsv."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix != ".tsv":
            return [line.strip() for line in file if line.strip()]
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row.get("sentence") or row["text"] for row in rows]
