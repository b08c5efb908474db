"""Texts in files -> pieces of them, each text with its file and row. Needs no Ray."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow

from offramp.classifier.texts import clean
from offramp.errors import BadData, BadOption
from offramp.tasks.files import READERS, ColumnMap, RawTable, guess_columns, read_file

IDS = ("id", "idx")
TAKEN = ("file", "row", "text", "text_pair", "label", "score", "layer")
ROWS = 1024
"""How many rows become a table at once; Ray joins and cuts tables by their size."""


@dataclass(frozen=True)
class Texts:
    """Where in the files of a folder the texts are."""

    home: Path
    columns: ColumnMap

    def count(self, file: Path) -> int:
        """How many texts a file has, all of it read as it will be."""
        return sum(piece.num_rows for piece in self.pieces(file))

    def pieces_of(self, batch: Any) -> Iterator[pyarrow.Table]:
        """Of the files in a batch of Ray's."""
        for file in batch["file"]:
            yield from self.pieces(Path(file))

    def pieces(self, file: Path) -> Iterator[pyarrow.Table]:
        """The texts of a file in order, with `file`, `row` and the id."""
        rows = self.read(file)
        for first in range(0, len(rows.numbers), ROWS):
            part = slice(first, first + ROWS)
            numbers = rows.numbers[part]
            yield pyarrow.table(
                {
                    "file": [str(file.relative_to(self.home))] * len(numbers),
                    "row": pyarrow.array(numbers, pyarrow.int64()),
                    **{self.name(role): strings(column[part]) for role, column in rows.cells.items()},
                }
            )

    def name(self, role: str) -> str:
        """Texts go by their role, the id by the name that it has in the file."""
        return str(self.columns.idx) if role == "idx" else role

    def read(self, file: Path) -> RawTable:
        rows = read_file(file).select(self.columns)
        faults = dict(rows.faults)
        for role in rows.cells.keys() - {"idx"}:
            for number, cell in zip(rows.numbers, rows.cells[role], strict=True):
                if not isinstance(cell, str):
                    faults[number] = f"{cell!r} as {role}, expected a text"
        if faults:
            raise BadData(f"{rows.where(min(faults))}: {faults[min(faults)]}. Fix the file.")
        return rows


def find_texts(
    source: Path, text: str | None, text_pair: str | None, id: str | None
) -> tuple[Texts, list[Path]]:
    """How to read a file, or all files in a folder, and which they are; the first says which columns there are."""
    files = files_in(source)
    names = read_file(files[0]).column_names
    found = guess_columns(
        str(files[0]), names, text, text_pair, label=""
    )  # any label will do, as it is not read
    ids = [id] if id else [name for name in names if name.lower() in IDS]
    if id in TAKEN:
        raise BadOption(f"an id cannot be called {id}, as the answers have a column of that name; rename it.")
    columns = ColumnMap(found.text, found.text_pair, idx=ids[0] if ids else None)
    for name in columns.roles().values():
        if name not in names:
            raise BadData(f"{files[0]}: no column named {name!r}, expected one of {', '.join(names)}")
    home = source if source.is_dir() else source.parent
    return Texts(home, columns), files


def files_in(source: Path) -> list[Path]:
    """Names that start with a dot or an underscore are not data, as everywhere in this field."""
    if not source.exists():
        raise BadOption(f"{source}: no such file or folder.")
    if source.is_file():
        return [source]
    inside = (file.relative_to(source) for file in sorted(source.rglob("*")) if file.is_file())
    files = [source / file for file in inside if not any(part.startswith((".", "_")) for part in file.parts)]
    other = [file for file in files if file.suffix.lower() not in READERS]
    if other:
        raise BadOption(f"{other[0]}: expected only files that end in {', '.join(READERS)}; move it away.")
    if not files:
        raise BadOption(f"{source}: no files there that end in {', '.join(READERS)}.")
    return files


def strings(cells: list[Any]) -> Any:
    """A column. Ids become text too, as files may have different kinds of them."""
    return pyarrow.array([None if cell is None else clean(str(cell)) for cell in cells], pyarrow.string())
