"""Where the rows of a split come from: a benchmark's file, the user's own file, or a data set.

A source knows which of its columns hold what. It reads them into a `RawTable`: cells that are not yet checked, each
with its line number, so that an error can name the file and the line.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from offramp.errors import BadData, explain_missing
from offramp.wording import count

Column: TypeAlias = int | str
"""A position, from 0 or negative from the end, or a name."""
Record: TypeAlias = tuple[int, list[Any]]
"""A line number and the cells of that line."""


@dataclass(frozen=True)
class ColumnMap:
    """Which column holds what; a split without labels has no `label`."""

    text: Column
    text_pair: Column | None = None
    label: Column | None = None
    idx: Column | None = None
    category: Column | None = None
    """What a guarantee may hold within, such as the language of a text."""

    def roles(self) -> dict[str, Column]:
        return {role: column for role, column in vars(self).items() if column is not None}


@dataclass(frozen=True)
class RawTable:
    """The cells of each role of a `ColumnMap`, not yet checked."""

    source: str
    cells: Mapping[str, list[Any]]
    numbers: Sequence[int]
    """The line or row number of each cell."""
    unit: str = "line"
    faults: Mapping[int, str] = field(default_factory=dict)
    """Why a line has no cells here."""
    headings: Mapping[str, str] = field(default_factory=dict)
    """The header's names for columns that were found by position."""
    label_names: Sequence[str] | None = None
    """The names of a data set's class indices."""

    def where(self, number: int) -> str:
        return f"{self.source}, {self.unit} {number}"


class Source(Protocol):
    """What a task reads a split from."""

    @property
    def columns(self) -> ColumnMap: ...

    def read(self) -> RawTable: ...


def split_tabs(line: str) -> list[str]:
    """The cells of a TSV line. Quotes are ordinary characters, as in GLUE's files."""
    return line.split("\t")


@dataclass(frozen=True)
class LineFile:
    """A benchmark's file: one row per line, columns by position."""

    path: Path
    columns: ColumnMap
    header: bool = True
    split_line: Callable[[str], list[str]] = split_tabs

    def read(self) -> RawTable:
        _check_exists(self.path)
        rows = [(number, self.split_line(line)) for number, line in _lines(self.path)]
        if not self.header:
            return _select(self.path, self.columns.roles(), rows, self._min_width())
        header = rows[0][1]
        if len(header) < self._min_width():
            raise BadData(
                f"{self.path}, line 1: expected at least {count(self._min_width(), 'column')}, found {len(header)}. "
                "Does this file belong to this task?"
            )
        headings = {role: header[column] for role, column in self._positions().items()}
        return _select(self.path, self.columns.roles(), rows[1:], len(header), headings)

    def _positions(self) -> dict[str, int]:
        return {role: column for role, column in self.columns.roles().items() if isinstance(column, int)}

    def _min_width(self) -> int:
        positions = self._positions().values()
        # a column counted from the end comes after all that are counted from the front
        return max(positions) + 1 + sum(position < 0 for position in positions)


@dataclass(frozen=True)
class UserFile:
    """The contents of a txt, CSV, TSV, JSONL, Parquet or CoNLL file, whose columns have names."""

    path: Path
    column_names: list[str]
    records: list[Record] = field(repr=False)

    @property
    def source(self) -> str:
        return str(self.path)

    @property
    def unit(self) -> str:
        return "row" if self.path.suffix.lower() == ".parquet" else "line"

    def __len__(self) -> int:
        return len(self.records)

    def where(self, record: int) -> str:
        return f"{self.path}, {self.unit} {self.records[record][0]}"

    def column(self, name: str) -> list[Any]:
        check_columns(self.source, [name], self.column_names)
        position = self.column_names.index(name)
        return [cells[position] for _, cells in self.records]

    def select_texts(self, columns: ColumnMap) -> RawTable:
        """Like `select`, for files without labels: a row of another width, or without a text, is an error.

        A list of words becomes a text.
        """
        table = self.select(columns)
        cells = {role: [join_words(cell) for cell in column] for role, column in table.cells.items()}
        table = replace(table, cells=cells)
        faults = {**table.faults, **no_texts(table)}
        if faults:
            raise BadData(f"{table.where(min(faults))}: {faults[min(faults)]}. Fix the file.")
        return table

    def select(self, columns: ColumnMap) -> RawTable:
        roles = columns.roles()
        check_columns(self.source, roles.values(), self.column_names)
        positions = {role: self.column_names.index(str(column)) for role, column in roles.items()}
        return _select(self.path, positions, self.records, len(self.column_names), unit=self.unit)


def read_file(path: Path) -> UserFile:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise BadData(f"{path}: expected a file that ends in {', '.join(READERS)}")
    _check_exists(path)
    (_, names), *records = reader(path)
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise BadData(f"{path}: two columns are named {twice[0]!r}; rename one of them")
    return UserFile(path, names, records)


@dataclass(frozen=True)
class DatasetTable:
    """A split of a `datasets.Dataset`, columns by name."""

    source: str
    data: Any = field(repr=False)
    numbered: bool = False
    """The task names its labels by the data set's numbers, not by its names."""
    label_names: Mapping[str, str] = field(default_factory=dict)
    """The data set's names of labels -> the task's, where they differ."""

    @property
    def column_names(self) -> list[str]:
        return list(self.data.column_names)

    def __len__(self) -> int:
        return len(self.data)

    def select(self, columns: ColumnMap) -> RawTable:
        roles = columns.roles()
        check_columns(self.source, roles.values(), self.column_names)
        data = self.data.with_format(None)
        cells = {role: list(data[column]) for role, column in roles.items()}
        feature, labels = data.features.get(columns.label), cells.pop("label", [])
        if any(cell not in (None, -1) for cell in labels):  # data sets mark missing labels by -1
            cells["label"] = [self._label(cell, feature) for cell in labels]
        numbers = range(1, len(self) + 1)
        return RawTable(self.source, cells, numbers, unit="row", label_names=class_names(feature))

    def _label(self, cell: Any, feature: Any) -> Any:
        if isinstance(cell, list):
            return [self._label(label, feature.feature) for label in cell]
        names = class_names(feature)
        if names and cell == -1:
            return None
        name = names[cell] if names and cell is not None and not self.numbered else cell
        return self.label_names.get(name, name) if isinstance(name, str) else name


def check_not_empty(table: UserFile | DatasetTable) -> None:
    if not len(table):
        raise BadData(f"{table.source}: no rows, only the names of the columns")


@dataclass(frozen=True)
class LoadedSplit:
    """A split that has been read already."""

    columns: ColumnMap
    table: RawTable = field(repr=False)

    def read(self) -> RawTable:
        return self.table


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the Hugging Face hub, columns by name."""

    path: str
    config: str | None
    split: str
    columns: ColumnMap
    numbered: bool = False
    label_names: Mapping[str, str] = field(default_factory=dict)
    """As in `DatasetTable`."""

    def read(self) -> RawTable:
        source = " ".join(filter(None, [self.path, self.config, self.split]))
        data = load_from_hub(self.path, self.config, self.split)
        return DatasetTable(source, data, self.numbered, self.label_names).select(self.columns)


def hub_splits(
    path: str,
    columns: ColumnMap,
    splits: Mapping[str, str],
    config: str | None = None,
    numbered: bool = False,
    label_names: Mapping[str, str] | None = None,
) -> dict[str, HubSplit]:
    """Several splits of one data set: `splits` has the task's names and the hub's."""
    return {
        split: HubSplit(path, config, theirs, columns, numbered, label_names or {})
        for split, theirs in splits.items()
    }


def text_columns(texts: Sequence[Any]) -> dict[str, list[str]]:
    """Texts, or pairs, as columns of a data set."""
    if isinstance(texts[0], str):
        return {"text": list(texts)}
    return {"text": [first for first, _ in texts], "text_pair": [second for _, second in texts]}


def class_names(feature: Any) -> list[str] | None:
    """The names of a column of class indices, or of lists of them."""
    return getattr(getattr(feature, "feature", feature), "names", None)


def load_from_hub(path: str, config: str | None, split: str | None = None) -> Any:
    """A data set, or one split of it."""
    import datasets

    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:  # datasets raises dozens of types for the same few causes
        raise BadData(
            f"could not load {' '.join(filter(None, [path, config, split]))} from the hub: {error}. "
            "Without a connection, use downloaded files."
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
WORDS, TAGS = ["tokens", "words"], ["ner_tags", "tags"]
"""Columns of tagged words: used where there are no texts, and no labels."""


def guess_columns(
    source: str,
    names: Sequence[str],
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    needs_label: bool = True,
) -> ColumnMap:
    """The named columns; a column that is not named is found by the usual names for it.

    >>> guess_columns("a.csv", ["id", "Sentence1", "Sentence2", "Score"])
    ColumnMap(text='Sentence1', text_pair='Sentence2', label='Score', idx=None, category=None)
    """
    free = {name.lower(): name for name in names if name not in (text, text_pair, label)}
    if text is None and text_pair is None:
        pairs = [(free[first], free[second]) for first, second in PAIRS if first in free and second in free]
        if len(pairs) == 1:
            text, text_pair = pairs[0]
    if text is None:
        texts = [free[name] for name in TEXTS if name in free]
        text = _only(source, names, "text", texts or [free[name] for name in WORDS if name in free])
    candidates = [free[name] for name in LABELS if name in free] or [
        free[name] for name in TAGS if name in free
    ]
    if label is None and (needs_label or candidates):
        label = _only(source, names, "label", candidates)
    return ColumnMap(text, text_pair, label)


def _only(source: str, names: Sequence[str], role: str, candidates: Sequence[str]) -> str:
    if len(candidates) != 1:
        raise BadData(f"{source}: which column is the {role}? Pass {role}=..., one of {', '.join(names)}")
    return candidates[0]


def check_columns(source: str, columns: Iterable[Column], names: Sequence[str]) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        raise BadData(f"{source}: no column named {missing[0]!r}, expected one of {', '.join(names)}")


def _select(
    path: Path,
    columns: Mapping[str, Any],
    records: Iterable[Record],
    width: int,
    headings: Mapping[str, str] | None = None,
    unit: str = "line",
) -> RawTable:
    """Records as columns. A record of another width is a fault: its cells cannot be assigned to columns."""
    good: list[Record] = []
    faults = {}
    for number, cells in records:
        if len(cells) == width:
            good.append((number, cells))
        else:
            faults[number] = f"expected {count(width, 'column')}, found {len(cells)}"
    table = {role: [cells[column] for _, cells in good] for role, column in columns.items()}
    return RawTable(str(path), table, [number for number, _ in good], unit, faults, headings or {})


def join_words(cell: Any) -> Any:
    """The text that words make, with a space between them; anything else stays as it is.

    >>> join_words(["Ann", "called"]), join_words("Ann called")
    ('Ann called', 'Ann called')
    """
    if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
        return " ".join(cell)
    return cell


def no_texts(table: RawTable) -> dict[int, str]:
    """Cells that should hold a text but do not, by line number."""
    return {
        number: f"{cell!r} as {role}, expected a text" if cell is not None else f"no {role}"
        for role in ("text", "text_pair")
        for number, cell in zip(table.numbers, table.cells.get(role, ()), strict=False)
        if not isinstance(cell, str)
    }


def _txt(path: Path) -> Iterator[Record]:
    """A text in each line, also in an empty one."""
    with path.open("rb") as file:
        lines = [*decode_lines(file, str(path))]
    if not lines:
        raise BadData(f"{path}: the file is empty, expected texts")
    yield 0, ["text"]
    yield from ((number, [line]) for number, line in enumerate(lines, 1))


def _tsv(path: Path) -> Iterator[Record]:
    return ((number, split_tabs(line)) for number, line in _lines(path))


def _csv(path: Path) -> Iterator[Record]:
    content = _content(path)
    first = 1  # a quoted cell may span lines; errors name the first
    limit = csv.field_size_limit(max(csv.field_size_limit(), len(content)))  # a cell may be a whole book
    try:
        reader = csv.reader(io.StringIO(content, newline=""), strict=True, delimiter=_delimiter(content))
        for cells in reader:
            if cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise BadData(f"{path}, line {first}: not CSV ({error}); double the quotes inside cells") from error
    finally:
        csv.field_size_limit(limit)


def _delimiter(content: str) -> str:
    """The separator that gives the first line the most columns: spreadsheets also write semicolons and tabs.

    >>> _delimiter("text;label\\na, b;yes\\n")
    ';'
    """
    header = content.partition("\n")[0].rstrip("\r")
    return max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def _jsonl(path: Path) -> Iterator[Record]:
    rows = [*_json_objects(path)]
    names = list(dict.fromkeys(name for _, record in rows for name in record))
    yield 0, names
    for number, record in rows:
        yield number, [record.get(name) for name in names]


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadData(f"{path}, line {number}: not JSON ({error}), expected an object") from error
        if not isinstance(record, dict):
            raise BadData(f'{path}, line {number}: expected an object, such as {{"text": ..., "label": ...}}')
        yield number, record


def _conll(path: Path) -> Iterator[Record]:
    """The words of each text and their tags: the first and the last column of its lines. A blank line ends a text.

    Columns are separated by tabs, or by spaces in a file without tabs. Lines that start a document (-DOCSTART-) are
    skipped; so are comments (#), in files with tabs.
    """
    lines = [*_lines(path)]
    tabs, width = any("\t" in line for _, line in lines), 0
    yield 0, ["words", "tags"]
    first, words, tags = 0, list[str](), list[str]()
    for number, line in [*lines, (0, "")]:
        cells = line.split("\t" if tabs else None)
        if cells[:1] == ["-DOCSTART-"] or (tabs and len(cells) == 1 and line.startswith("#")):
            continue
        if line.strip():
            width = width or max(2, len(cells))
            if len(cells) != width:
                raise BadData(
                    f"{path}, line {number}: expected {width} columns, a word and its tag, found {len(cells)}"
                )
            first = first or number
            words.append(cells[0].strip())
            tags.append(cells[-1].strip())
        elif words:
            yield first, [words, tags]
            first, words, tags = 0, [], []


def _parquet(path: Path) -> Iterator[Record]:
    with explain_missing(f"{path} is a Parquet file, which"):
        import pyarrow
        import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise BadData(f"{path}: not a Parquet file ({error})") from error
    yield 0, table.column_names
    yield from enumerate((list(record) for record in zip(*table.to_pydict().values(), strict=True)), 1)


READERS: Mapping[str, Callable[[Path], Iterator[Record]]] = {
    ".txt": _txt,
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".conll": _conll,
    ".bio": _conll,
    ".iob": _conll,
}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines. Only a line feed ends a line: other separators belong to the text."""
    lines = _content(path).rstrip("\r\n").split("\n")
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def _content(path: Path) -> str:
    content = _decode(path.read_bytes(), str(path))
    if not content.strip():
        raise BadData(f"{path}: the file is empty, expected examples")
    return content


def decode_lines(lines: Iterable[bytes], source: str) -> Iterator[str]:
    """Lines of UTF-8 without their line breaks, and without a byte order mark before the first."""
    return (_decode(line, source, number).rstrip("\r\n") for number, line in enumerate(lines, 1))


def _decode(data: bytes, source: str, line: int = 1) -> str:
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise BadData(f"{source}, line {line}: not UTF-8. Convert the text to UTF-8.") from error


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise BadData(f"{path}: no such file")
