"""Where the rows of a split come from: a table of lines, CSV, JSON lines, Parquet, or a data set of the hub.

A source knows which of its columns hold what, and reads them into `Rows`: raw cells, each with its place, so
that whoever finds fault with a cell can name the file and the line.
"""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from offramp.errors import BadData

Column: TypeAlias = int | str
"""A position, from 0 or with a minus from the end, or a name."""


@dataclass(frozen=True)
class Columns:
    """Which column holds what; a split without labels has no `label`."""

    text: Column
    text_pair: Column | None = None
    label: Column | None = None
    idx: Column | None = None

    def roles(self) -> dict[str, Column]:
        found = {"text": self.text, "text_pair": self.text_pair, "label": self.label, "idx": self.idx}
        return {role: column for role, column in found.items() if column is not None}


@dataclass(frozen=True)
class Rows:
    """One split as its source holds it: the cells of each role, not yet checked."""

    source: str
    cells: Mapping[str, list[Any]]
    numbers: Sequence[int]
    """The line, or the row, that each cell comes from."""
    unit: str = "line"
    faults: Mapping[int, str] = field(default_factory=dict)
    """What is wrong with the lines that gave no cells."""
    headings: Mapping[str, str] = field(default_factory=dict)
    """What the header calls the columns that were found by position."""


class Source(Protocol):
    """What a task reads a split from."""

    @property
    def columns(self) -> Columns: ...

    def read(self) -> Rows: ...


def tabs(line: str) -> list[str]:
    """The cells of a TSV line. Quotes are ordinary characters, as in GLUE's files."""
    return line.split("\t")


@dataclass(frozen=True)
class Table:
    """Lines that divide into cells, columns by position: how the files of the benchmarks look."""

    path: Path
    columns: Columns
    header: bool = True
    cells: Callable[[str], list[str]] = tabs

    def read(self) -> Rows:
        rows = [(number, self.cells(line)) for number, line in _lines(self.path)]
        if not self.header:
            return _rows(self.path, self.columns.roles(), rows, self._least_width())
        header = rows[0][1]
        if len(header) < self._least_width():
            raise BadData(
                f"{self.path}, line 1: {len(header)} columns, expected at least {self._least_width()}. "
                "Is this the file of this task?"
            )
        headings = {role: header[column] for role, column in self._positions().items()}
        return _rows(self.path, self.columns.roles(), rows[1:], len(header), headings)

    def _positions(self) -> dict[str, int]:
        return {role: column for role, column in self.columns.roles().items() if isinstance(column, int)}

    def _least_width(self) -> int:
        positions = self._positions().values()
        # a column counted from the end stands behind all that are counted from the front
        return max(positions) + 1 + sum(position < 0 for position in positions)


@dataclass(frozen=True)
class File:
    """A file of a person's own, columns by name; its ending says how it is written."""

    path: Path
    columns: Columns

    def read(self) -> Rows:
        (_, names), *rows = _records(self.path)
        positions = _positions(str(self.path), self.columns, names)
        unit = "row" if self.path.suffix.lower() == ".parquet" else "line"
        return _rows(self.path, positions, rows, len(names), unit=unit)


def column_names(path: Path) -> list[str]:
    """How a file of a person's own calls its columns."""
    return next(_records(path))[1]


@dataclass(frozen=True)
class Hub:
    """A split of a data set on the Hugging Face hub, columns by name."""

    path: str
    config: str | None
    split: str
    columns: Columns
    numbered: bool = False
    """The task knows its labels by the hub's numbers, not by the hub's names."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The task's names for labels that the hub names otherwise."""

    def read(self) -> Rows:
        data = hub_data(self.path, self.config, self.split)
        source = " ".join(filter(None, [self.path, self.config, self.split]))
        positions = _positions(source, self.columns, data.column_names)
        cells = {role: list(data[data.column_names[position]]) for role, position in positions.items()}
        labels = cells.pop("label", [])
        if any(cell not in (None, -1) for cell in labels):  # -1: how the hub says that there is no label
            cells["label"] = [self._label(cell, data.features[self.columns.label]) for cell in labels]
        return Rows(source, cells, range(1, len(data) + 1), unit="row")

    def _label(self, cell: Any, feature: Any) -> Any:
        if isinstance(cell, list):
            return [self._label(each, feature.feature) for each in cell]
        names = label_names(feature)
        if names and cell == -1:
            return None
        name = names[cell] if names and cell is not None and not self.numbered else cell
        return self.names.get(name, name) if isinstance(name, str) else name


def label_names(feature: Any) -> list[str] | None:
    """The names that the hub has for the numbers of a label column, or of the lists in it."""
    return getattr(getattr(feature, "feature", feature), "names", None)


def hub_data(path: str, config: str | None, split: str | None = None) -> Any:
    """A data set of the hub, whole or one split of it."""
    import datasets

    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:  # the hub's library raises dozens of kinds, which all mean the same here
        raise BadData(
            f"could not load {' '.join(filter(None, [path, config, split]))} from the hub: {error}. "
            "Without a connection, give files: Task.named(name, folder=...) or Task.from_files(...)"
        ) from error


TEXTS = ["text", "sentence", "content", "review", "document", "question", "premise"]
PAIRS = [
    ("text", "text_pair"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
]
LABELS = ["label", "labels", "class", "category", "target", "score", "intent", "sentiment"]


def guess(
    source: str,
    names: Sequence[str],
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    needs_label: bool = True,
) -> Columns:
    """The columns that were named; those that were not, by the names that such columns usually have.

    >>> guess("a.csv", ["id", "Sentence1", "Sentence2", "Score"])
    Columns(text='Sentence1', text_pair='Sentence2', label='Score', idx=None)
    """
    free = {name.lower(): name for name in names if name not in (text, text_pair, label)}
    if text is None and text_pair is None:
        pairs = [(free[first], free[second]) for first, second in PAIRS if first in free and second in free]
        if len(pairs) == 1:
            text, text_pair = pairs[0]
    if text is None:
        text = _only(source, names, "text", [free[name] for name in TEXTS if name in free])
    candidates = [free[name] for name in LABELS if name in free]
    if label is None and (needs_label or candidates):
        label = _only(source, names, "label", candidates)
    return Columns(text, text_pair, label)


def _only(source: str, names: Sequence[str], role: str, candidates: Sequence[str]) -> str:
    if len(candidates) != 1:
        raise BadData(f"{source}: which column is the {role}? Say {role}=..., one of {', '.join(names)}")
    return candidates[0]


def _positions(source: str, columns: Columns, names: Sequence[str]) -> dict[str, int]:
    missing = [column for column in columns.roles().values() if column not in names]
    if missing:
        raise BadData(f"{source}: no column named {missing[0]!r}, expected one of {', '.join(names)}")
    return {role: names.index(str(column)) for role, column in columns.roles().items()}


def _rows(
    path: Path,
    columns: Mapping[str, Any],
    records: Iterable[tuple[int, list[Any]]],
    width: int,
    headings: Mapping[str, str] | None = None,
    unit: str = "line",
) -> Rows:
    """The records as columns; those of another width cannot be told apart into columns, and are faults."""
    records = list(records)
    even = [record for record in records if len(record[1]) == width]
    faults = {
        number: f"{len(cells)} columns, expected {width}" for number, cells in records if len(cells) != width
    }
    found = {role: [cells[column] for _, cells in even] for role, column in columns.items()}
    return Rows(str(path), found, [number for number, _ in even], unit, faults, headings or {})


def _records(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """The names of the columns, then every record, each with its line."""
    if path.suffix.lower() not in READERS:
        raise BadData(f"{path}: expected a file that ends in {', '.join(READERS)}")
    records = READERS[path.suffix.lower()](path)
    header = next(records)
    twice = [name for name in header[1] if name and header[1].count(name) > 1]
    if twice:
        raise BadData(f"{path}: two columns are named {twice[0]!r}, expected each name once. Rename one.")
    return itertools.chain([header], records)


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, tabs(line)) for number, line in _lines(path))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    content = _content(path)
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    first = 1  # a quoted cell may span lines: a record is named by its first
    limit = csv.field_size_limit(max(csv.field_size_limit(), len(content)))  # a text may be a whole book
    try:
        for cells in reader:
            if cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise BadData(f"{path}, line {first}: not CSV ({error}): double the quotes inside cells") from error
    finally:
        csv.field_size_limit(limit)


def _jsonl(path: Path) -> Iterator[tuple[int, list[Any]]]:
    names: list[str] = []
    for number, line in _lines(path):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadData(f"{path}, line {number}: not JSON ({error}), expected an object") from error
        if not isinstance(record, dict):
            raise BadData(f'{path}, line {number}: expected an object, such as {{"text": ..., "label": ...}}')
        if not names:
            names = list(record)
            yield number, names
        yield number, [record.get(name) for name in names]


def _parquet(path: Path) -> Iterator[tuple[int, list[Any]]]:
    import pyarrow
    import pyarrow.parquet

    _check_file(path)
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise BadData(f"{path}: not a Parquet file ({error})") from error
    yield 0, table.column_names
    yield from enumerate((list(record) for record in zip(*table.to_pydict().values(), strict=True)), 1)


READERS: Mapping[str, Callable[[Path], Iterator[tuple[int, list[Any]]]]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines end at line breaks only: other separators, and returns in the middle, belong to the text."""
    lines = _content(path).rstrip("\r\n").split("\n")
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def _content(path: Path) -> str:
    _check_file(path)
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadData(f"{path}, line {line}: not UTF-8. Convert the file to UTF-8.") from error
    if not content.strip():
        raise BadData(f"{path}: the file is empty, expected examples")
    return content


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise BadData(f'{path}: no such file. Other splits can be loaded by name, as in load("validation")')
