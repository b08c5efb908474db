"""From the raw cells of a split to columns that a model can learn from, or an error that names the place.

A row of the wrong width, or without its text or label, may be dropped where a person asks for it; a label
that the task does not know, or a word in place of a number, means that task and file do not belong together.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offramp.errors import BadData
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from offramp.tasks.files import Rows


def checked(
    rows: Rows,
    texts: Sequence[str],
    labels: Sequence[str] | None,
    problem_type: str,
    separator: str | None = None,
    bad_rows: str = "error",
) -> dict[str, list[Any]]:
    """The columns of text, `label` where there are labels, and `idx`."""
    check_header(rows, labels or ())
    rows = whole(rows, incomplete(rows, texts, problem_type), bad_rows)
    columns = {role: rows.cells[role] for role in texts}
    if "label" in rows.cells:
        columns["label"] = label_column(rows, labels or (), problem_type, separator)
    columns["idx"] = idx_column(rows)
    return columns


def check_header(rows: Rows, labels: Sequence[str]) -> None:
    """A file that lost its header would lose its first example too."""
    label, idx = rows.headings.get("label", "").strip(), rows.headings.get("idx", "")
    if label in labels or is_number(label) or idx.isdigit():
        raise BadData(f"{rows.source}, line 1: an example, expected a header that names the columns")


def incomplete(rows: Rows, texts: Sequence[str], problem_type: str) -> dict[int, str]:
    """What the rows lack, by line."""
    found = {}
    for role in texts:
        for number, text in zip(rows.numbers, rows.cells[role], strict=True):
            if text is None or (isinstance(text, str) and not text.strip()):
                found[number] = f"empty {role}, expected some words"
            elif not isinstance(text, str):
                raise BadData(f"{place(rows, number)}: {text!r} as {role}, expected a string")
    if "label" in rows.cells:
        for number, label in zip(rows.numbers, rows.cells["label"], strict=True):
            none_of_many = problem_type == MULTI_LABEL and isinstance(label, str)
            if is_missing(label) and not none_of_many:
                found[number] = "no label"
    return found


def whole(rows: Rows, lacking: Mapping[int, str], bad_rows: str) -> Rows:
    """The rows without fault. Others are an error, or dropped aloud."""
    faults = {**rows.faults, **lacking}
    if not faults:
        if not rows.numbers:
            raise BadData(f"{rows.source}: no examples")
        return rows
    first = min(faults)
    message = f"{place(rows, first)}: {faults[first]} (rows with such faults: {len(faults)})"
    if "label" not in rows.cells:
        raise BadData(f"{message}. Every row of a test set needs an answer: mend the file.")
    if bad_rows != "drop":
        raise BadData(f'{message}. Mend the file, or say bad_rows="drop" to go on without these rows.')
    kept = [row for row, number in enumerate(rows.numbers) if number not in faults]
    if not kept:
        raise BadData(f"{message}, and no others")
    warnings.warn(f"dropped {len(faults)} rows, the first being {message}", stacklevel=6)
    cells = {role: [column[row] for row in kept] for role, column in rows.cells.items()}
    return replace(rows, cells=cells, numbers=[rows.numbers[row] for row in kept], faults={})


def label_column(
    rows: Rows, labels: Sequence[str], problem_type: str, separator: str | None = None
) -> list[int] | list[float] | list[list[float]]:
    """Indices into the labels, numbers, or for each example a 1 at each label it has."""
    cells = list(zip(rows.numbers, rows.cells["label"], strict=True))
    index = {label: position for position, label in enumerate(labels)}
    if problem_type == REGRESSION:
        return [_number(rows, *cell) for cell in cells]
    if problem_type == MULTI_LABEL:
        return [_marks(rows, number, names(rows, number, cell, separator), index) for number, cell in cells]
    return [_position(rows, number, name(rows, number, cell), index) for number, cell in cells]


def _number(rows: Rows, number: int, cell: Any) -> float:
    if not is_number(cell):
        raise BadData(f"{place(rows, number)}: label {cell!r}, expected a number")
    return float(cell)


def _marks(rows: Rows, number: int, found: Sequence[str], index: Mapping[str, int]) -> list[float]:
    if len(set(found)) < len(found):
        raise BadData(f"{place(rows, number)}: labels {found}, expected each name at most once")
    positions = {_position(rows, number, label, index) for label in found}
    return [float(position in positions) for position in range(len(index))]


def _position(rows: Rows, number: int, label: str, index: Mapping[str, int]) -> int:
    if label not in index:
        raise BadData(f"{place(rows, number)}: label {label!r}, expected one of {', '.join(index)}")
    return index[label]


def idx_column(rows: Rows) -> list[int]:
    """The file's own index, or where it has none the number of the row, from 0."""
    cells = rows.cells.get("idx", range(len(rows.numbers)))
    for number, cell in zip(rows.numbers, cells, strict=True):
        if not str(cell).isdecimal():
            raise BadData(f"{place(rows, number)}: index {cell!r}, expected a whole number")
    return [int(cell) for cell in cells]


def infer_problem_type(rows: Rows, labels: Sequence[str] | None, separator: str | None) -> str:
    """Lists, or texts to divide, are many labels; numbers with fractions are to be predicted as numbers."""
    labelled = zip(rows.numbers, rows.cells["label"], strict=True) if "label" in rows.cells else ()
    cells = {number: cell for number, cell in labelled if not is_missing(cell)}
    if separator is not None or any(isinstance(cell, list) for cell in cells.values()):
        return MULTI_LABEL
    fractions = [cell for cell in cells.values() if is_number(cell) and not float(cell).is_integer()]
    if labels is not None or not fractions:
        return SINGLE_LABEL
    for number, cell in cells.items():
        if not is_number(cell):
            raise BadData(
                f"{place(rows, number)}: label {cell!r}, expected a number as {fractions[0]!r} is one. "
                f"Mend it, or say that these are names: problem_type={SINGLE_LABEL!r}"
            )
    return REGRESSION


def infer_labels(rows: Rows, problem_type: str, separator: str | None) -> list[str]:
    """The labels that occur, numbers by size and words by letter."""
    if "label" not in rows.cells:
        raise BadData(f"{rows.source}: no labels here to be found. Say labels=[...]")
    found: set[str] = set()
    for number, cell in zip(rows.numbers, rows.cells["label"], strict=True):
        if not is_missing(cell):
            many = problem_type == MULTI_LABEL
            found.update(names(rows, number, cell, separator) if many else [name(rows, number, cell)])
    if len(found) < 2:
        raise BadData(f"{rows.source}: the only label is {', '.join(found) or 'none'}, expected at least two")
    return sorted(found, key=float) if all(map(is_number, found)) else sorted(found)


def names(rows: Rows, number: int, cell: Any, separator: str | None) -> list[str]:
    """The labels of an example that may have many."""
    if isinstance(cell, list):
        return [name(rows, number, label) for label in cell]
    if isinstance(cell, str) and separator is not None:
        return [label.strip() for label in cell.split(separator) if label.strip()]
    raise BadData(f"{place(rows, number)}: label {cell!r}, expected a list of names, or say separator=...")


def name(rows: Rows, number: int, cell: Any) -> str:
    """A label as text without spaces around it; a whole number that a table stores as 1.0 is 1."""
    if is_missing(cell) or isinstance(cell, dict | list):
        raise BadData(f"{place(rows, number)}: label {cell!r}, expected a name or a number")
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def is_missing(cell: Any) -> bool:
    """Nothing, blank, or what tables write for a missing number."""
    if isinstance(cell, float):
        return not math.isfinite(cell)
    return cell is None or (isinstance(cell, str) and not cell.strip())


def is_number(cell: Any) -> bool:
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError):
        return False


def place(rows: Rows, number: int) -> str:
    return f"{rows.source}, {rows.unit} {number}"
