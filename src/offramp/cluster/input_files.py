"""Input files -> tables of texts, each row with its file and line.

Files are read as by all other commands. Ray Data's readers know no lines, turn the id 007 into 7, and refuse ids of
mixed types without naming the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow

from offramp.data.files import READERS, ColumnMap, check_columns, guess_columns, read_file
from offramp.errors import BadOption
from offramp.inference.texts import clean

ID_NAMES = ("id", "idx")
RESERVED = ("file", "row", "text", "text_pair", "decision", "label", "score", "layer")
ROWS_PER_TABLE = 1024
"""Ray merges and splits tables by their size."""


@dataclass(frozen=True)
class TextFiles:
    """How to read the files of a folder: which columns hold the texts and the id."""

    home: Path
    columns: ColumnMap

    def count(self, file: Path) -> int:
        """The number of texts in a file. Reads and checks all of it."""
        return sum(table.num_rows for table in self.tables(file))

    def tables_of_batch(self, batch: Any) -> Iterator[pyarrow.Table]:
        """For Ray's `map_batches`."""
        for file in batch["file"]:
            yield from self.tables(Path(file))

    def tables(self, file: Path) -> Iterator[pyarrow.Table]:
        """The texts of a file in order, with `file`, `row` and the id."""
        rows = read_file(file).select_texts(self.columns)
        for first in range(0, len(rows.numbers), ROWS_PER_TABLE):
            part = slice(first, first + ROWS_PER_TABLE)
            numbers = rows.numbers[part]
            yield pyarrow.table(
                {
                    "file": [str(file.relative_to(self.home))] * len(numbers),
                    "row": pyarrow.array(numbers, pyarrow.int64()),
                    **{self.name(role): strings(column[part]) for role, column in rows.cells.items()},
                }
            )

    def name(self, role: str) -> str:
        """Texts are named by their role, the id keeps its name in the file."""
        return str(self.columns.idx) if role == "idx" else role


def find_texts(
    source: Path, text: str | None, text_pair: str | None, id: str | None
) -> tuple[TextFiles, list[Path]]:
    """The files at `source`, a file or a folder, and how to read them; columns are those of the first file."""
    files = list_files(source)
    names = read_file(files[0]).column_names
    guessed = guess_columns(str(files[0]), names, text, text_pair, label="")  # labels are not read
    ids = [id] if id else [name for name in names if name.lower() in ID_NAMES]
    if id in RESERVED:
        raise BadOption(f"the id column cannot be called {id}, a column of the output; rename it.")
    columns = ColumnMap(guessed.text, guessed.text_pair, idx=ids[0] if ids else None)
    check_columns(str(files[0]), columns.roles().values(), names)
    home = source if source.is_dir() else source.parent
    return TextFiles(home, columns), files


def list_files(source: Path) -> list[Path]:
    """Skips names that start with a dot or an underscore, as Spark and Hive do."""
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
        raise BadOption(f"{source}: no files that end in {', '.join(READERS)}.")
    return files


def strings(cells: list[Any]) -> Any:
    """A column of strings; ids too, as their type may differ between files."""
    return pyarrow.array([None if cell is None else clean(str(cell)) for cell in cells], pyarrow.string())
