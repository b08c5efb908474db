"""The rows of texts that commands read, and the records of predictions that they write."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from offramp.cli.command import Result
from offramp.errors import BadData, BadLabels, BadOption
from offramp.files import atomic_file
from offramp.wording import count

PROBABILITIES = "probabilities"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
STDIN_FORMATS = ("txt", "csv", "tsv", "jsonl")


class Row(NamedTuple):
    """One text or pair, and the columns that it was read from."""

    text: Any
    columns: Mapping[str, Any]


def read_rows(path: Path, text: str | None, text_pair: str | None) -> Iterator[Row]:
    """The texts of a file, or its pairs, with all columns."""
    from offramp.data.files import ColumnMap, check_not_empty, guess_columns, read_file

    if path.is_dir():
        raise BadOption(
            f"{path} is a folder; name one txt, csv, tsv, jsonl or parquet file in it. `offramp predict-files` "
            "predicts all files of a folder."
        )
    if not path.is_file():
        raise BadOption(f"{path}: no such file.")
    file = read_file(path)
    check_not_empty(file)
    columns = guess_columns(str(path), file.column_names, text, text_pair, label="")  # labels are not read
    table = file.select_texts(ColumnMap(columns.text, columns.text_pair))
    texts = zip(*table.cells.values(), strict=True)
    for parts, (_, cells) in zip(texts, file.records, strict=True):
        record = dict(zip(file.column_names, cells, strict=True))
        yield Row(parts if len(parts) > 1 else parts[0], record)


def read_lists(file: Path, query: str, text: str) -> dict[str, list[Row]]:
    """The rows of each query, in the order of the file."""
    if file.suffix.lower() == ".txt":
        raise BadOption(
            f"{file}: expected a csv, tsv, jsonl or parquet file with the columns {query} and {text}."
        )
    lists: dict[str, list[Row]] = {}
    for row in read_rows(file, query, text):
        lists.setdefault(row.text[0], []).append(row)
    return lists


def read_labels(
    rows: Sequence[Row], source: Path, text: str | None, text_pair: str | None, label: str | None
) -> list[Any] | None:
    """The cells of the column of labels, which is guessed from its name by default; None if there is none.

    Numbers are names too, as in a csv file: 1 and 1.0 are "1".
    """
    from offramp.data.checks import cell_text
    from offramp.data.files import guess_columns

    names = [*rows[0].columns] if rows else []
    if label is not None and label not in names:
        raise BadLabels(f"{source}: no column named {label!r}, expected one of {', '.join(names)}")
    try:
        column = guess_columns(str(source), names, text, text_pair, label, needs_label=False).label
    except BadData as error:
        raise BadLabels(str(error)) from None
    if column is None:
        return None
    cells = (row.columns[str(column)] for row in rows)
    return [cell_text(cell) if isinstance(cell, int | float) else cell for cell in cells]


def read_column(rows: Sequence[Row], source: Path, column: str | None, flag: str) -> list[Any] | None:
    """The cells of the column that a flag names; None without one."""
    names = [*rows[0].columns] if rows else []
    if column is not None and column not in names:
        raise BadOption(f"{flag} {column}: {source} has the columns {', '.join(names)}.")
    return None if column is None else [row.columns[column] for row in rows]


def read_stdin(kind: str, text: str | None, text_pair: str | None) -> Iterator[Row]:
    """Streams lines of text; other formats are read whole."""
    if kind not in STDIN_FORMATS:
        raise BadOption(f"--input-format {kind}: choose {', '.join(STDIN_FORMATS)}.")
    if kind == "txt":
        from offramp.data.files import decode_lines

        yield from (Row(line, {"text": line}) for line in decode_lines(sys.stdin.buffer, "stdin"))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"stdin.{kind}"
        file.write_bytes(sys.stdin.buffer.read())
        try:
            yield from read_rows(file, text, text_pair)
        except (BadData, BadOption) as error:
            raise type(error)(str(error).replace(str(file), "stdin")) from None


def input_columns(row: Row, taken: Collection[str]) -> dict[str, Any]:
    """The columns that a row was read from, renamed where a prediction has the same name."""
    return {f"input_{name}" if name in taken else name: value for name, value in row.columns.items()}


def rounded(value: float) -> float | None:
    """To the precision of a float32; None for NaN and infinity, which JSON lacks."""
    return round(value, 6) if math.isfinite(value) else None


def check_format(out: Path) -> None:
    if out.suffix.lower() not in LINES:
        raise BadOption(f"{out}: expected a file that ends in {', '.join(LINES)}.")


def write_records(
    records: Iterator[dict[str, Any]], out: Path, labels: Sequence[str], safe: bool = False
) -> Result:
    """Writes a file in the format of its suffix; a table has a column for each of the labels. In a `safe` table, no
    spreadsheet takes a text for a formula."""
    to_line, number = LINES[out.suffix.lower()], 0
    # a lone surrogate of the input is not UTF-8; the escape that replaces it is what JSON has for it
    codec: Any = {"encoding": "utf-8", "errors": "backslashreplace"}
    with atomic_file(out) as draft, draft.open("w", newline="", **codec) as file:
        for number, record in enumerate(records, 1):
            if to_line is not json_line:
                record |= {f"probability_{name}": record[PROBABILITIES][name] for name in labels}
                if safe:
                    record = {quote_formula(name): quote_formula(value) for name, value in record.items()}
                if number == 1:
                    file.write(to_line({name: name for name in record}) + "\n")
            file.write(to_line(record) + "\n")
    return Result({"out": str(out), "examples": number}, f"{out}: {count(number, 'prediction')}")


def quote_formula(value: Any) -> Any:
    """A cell with an apostrophe before what a spreadsheet would run.

    >>> quote_formula("=1+2"), quote_formula("film"), quote_formula(-0.5)
    ("'=1+2", 'film', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


def json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, default=str)


def csv_line(record: Mapping[str, Any]) -> str:
    line, end = io.StringIO(), "\r\n"  # csv quotes the characters that end a line
    csv.writer(line, lineterminator=end).writerow(cells(record))
    return line.getvalue().removesuffix(end)


def tsv_line(record: Mapping[str, Any]) -> str:
    """Line breaks and tabs inside a text become spaces."""
    return "\t".join(" ".join(cell.split()) for cell in cells(record))


def cells(record: Mapping[str, Any]) -> list[str]:
    """All values but the probabilities."""
    return [cell(value) for key, value in record.items() if key != PROBABILITIES]


def cell(value: Any) -> str:
    """Multiple labels, which are a tuple, are joined by commas; lists, such as spans, are JSON."""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)


LINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    ".jsonl": json_line,
    ".csv": csv_line,
    ".tsv": tsv_line,
}
