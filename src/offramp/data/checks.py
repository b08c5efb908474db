"""Raw cells -> checked columns that a model can be trained on, or an error that names the line.

Rows of the wrong width, or without text or label, can be dropped if the user asks for it. A label that the task does
not have, or a word in place of a number, is always an error: the file does not belong to the task.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offramp.data.files import RawTable, join_words
from offramp.errors import BadData
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, TOKENS, Problem
from offramp.wording import count

ENOUGH_TO_JUDGE = 20
"""Rows from which labels can be recognized as ids."""
MOST_DIFFERENT = 0.9
"""The share of rows whose labels may differ from all others before they count as ids."""


def check_rows(
    table: RawTable,
    texts: Sequence[str],
    labels: Sequence[str] | None,
    problem: Problem,
    separator: str | None = None,
    bad_rows: str = "error",
) -> dict[str, list[Any]]:
    """The text columns, `words` if texts come as words, `label` and `category` if the table has them, and `idx`."""
    check_header(table, labels or ())
    table = without_faults(table, find_incomplete(table, texts, problem), bad_rows)
    columns = {role: [join_words(cell) for cell in table.cells[role]] for role in texts}
    if problem.of_tokens and "label" in table.cells:
        columns["words"] = table.cells["text"]
    if "label" in table.cells:
        columns["label"] = label_column(table, labels or (), problem, separator)
    if "category" in table.cells:
        columns["category"] = table.cells["category"]
    columns["idx"] = idx_column(table)
    return columns


def check_header(table: RawTable, labels: Sequence[str]) -> None:
    """Without its header, a file would lose its first example."""
    label, idx = table.headings.get("label", "").strip(), table.headings.get("idx", "")
    if label in labels or is_number(label) or idx.isdigit():
        raise BadData(
            f"{table.source}, line 1: expected a header with the names of the columns, found an example"
        )


def find_incomplete(table: RawTable, texts: Sequence[str], problem: Problem) -> dict[int, str]:
    """What rows lack, by line number."""
    faults = {}
    for role in texts:
        for number, text in zip(table.numbers, table.cells[role], strict=True):
            is_blank = isinstance(text, str) and not text.strip()
            if text is None or (is_blank and not problem.of_tokens):  # in a blank text there are no spans
                faults[number] = f"empty {role}"
            elif problem.of_tokens and isinstance(text, list):
                if not text or not all(isinstance(word, str) and word.strip() for word in text):
                    faults[number] = "a word without characters" if text else "no words"
            elif not isinstance(text, str):
                raise BadData(f"{table.where(number)}: {text!r} as {role}, expected a string")
            elif problem.of_tokens and "label" in table.cells:
                raise BadData(f"{table.where(number)}: {text!r} as {role}, expected a list of its words")
    if "label" in table.cells:
        for number, label in zip(table.numbers, table.cells["label"], strict=True):
            empty_set = problem.multi_label and isinstance(label, str)
            if is_missing(label) and not empty_set:
                faults[number] = "no label"
    return faults


def without_faults(table: RawTable, incomplete: Mapping[int, str], bad_rows: str) -> RawTable:
    """The good rows. Bad ones raise an error, or are dropped with a warning."""
    faults = {**table.faults, **incomplete}
    if not faults:
        if not table.numbers:
            raise BadData(f"{table.source}: no examples")
        return table
    first = min(faults)
    bad, message = count(len(faults), "bad row"), f"{table.where(first)}: {faults[first]}"
    if "label" not in table.cells:
        raise BadData(f"{message} ({bad}). Every row of a test set needs a prediction; fix the file.")
    if bad_rows != "drop":
        raise BadData(f"{message} ({bad}). Fix the file, or pass bad_rows='drop' to skip such rows.")
    kept = [row for row, number in enumerate(table.numbers) if number not in faults]
    if not kept:
        raise BadData(f"{message} ({bad}). No row is left.")
    warnings.warn(f"dropped {bad}, the first at {message}", stacklevel=6)
    cells = {role: [column[row] for row in kept] for role, column in table.cells.items()}
    return replace(table, cells=cells, numbers=[table.numbers[row] for row in kept], faults={})


def label_numbers(
    cells: Sequence[Any], labels: Sequence[str], problem: Problem, separator: str | None, source: str
) -> list[Any]:
    """Labels by name, one for each row of the source, as `label_column` returns them."""
    table = RawTable(source, {"label": [*cells]}, range(1, len(cells) + 1), unit="row")
    for row, fault in find_incomplete(table, (), problem).items():
        raise BadData(f"{table.where(row)}: {fault}; label all rows, or none")
    return label_column(table, labels, problem, separator)


def label_column(
    table: RawTable, labels: Sequence[str], problem: Problem, separator: str | None = None
) -> list[Any]:
    """Indices into the labels, numbers, multi-hot rows, or the indices of words' tags."""
    cells = list(zip(table.numbers, table.cells["label"], strict=True))
    index = {label: position for position, label in enumerate(labels)}
    if not problem.has_classes:
        return [_number(table, *cell) for cell in cells]
    if problem.of_tokens:
        return [
            _tags(table, number, words, tags, index)
            for (number, tags), words in zip(cells, table.cells["text"], strict=True)
        ]
    if problem.multi_label:
        return [
            _multi_hot(table, number, label_set(table, number, cell, separator), index)
            for number, cell in cells
        ]
    return [_index(table, number, label_name(table, number, cell), index) for number, cell in cells]


def _number(table: RawTable, number: int, cell: Any) -> float:
    if not is_number(cell):
        raise BadData(f"{table.where(number)}: label {cell!r}, expected a number")
    return float(cell)


def _multi_hot(table: RawTable, number: int, labels: Sequence[str], index: Mapping[str, int]) -> list[float]:
    if len(set(labels)) < len(labels):
        raise BadData(f"{table.where(number)}: labels {labels}, expected each name at most once")
    positions = {_index(table, number, label, index) for label in labels}
    return [float(position in positions) for position in range(len(index))]


def _tags(
    table: RawTable, number: int, words: Sequence[str], tags: Any, index: Mapping[str, int]
) -> list[int]:
    if not isinstance(tags, list) or len(tags) != len(words):
        found = count(len(tags), "tag") if isinstance(tags, list) else repr(tags)
        raise BadData(
            f"{table.where(number)}: {found} for {count(len(words), 'word')}, expected one for each"
        )
    return [_index(table, number, label_name(table, number, tag), index) for tag in tags]


def _index(table: RawTable, number: int, label: str, index: Mapping[str, int]) -> int:
    if label not in index:
        hint = (
            "; these are placeholders, pass the real names as labels=..."
            if has_default_names([*index])
            else ""
        )
        raise BadData(f"{table.where(number)}: label {label!r}, expected one of {', '.join(index)}{hint}")
    return index[label]


def idx_column(table: RawTable) -> list[int]:
    """The file's own index, or else the row number from 0."""
    cells = table.cells.get("idx", range(len(table.numbers)))
    for number, cell in zip(table.numbers, cells, strict=True):
        if not str(cell).isdecimal():
            raise BadData(f"{table.where(number)}: index {cell!r}, expected a whole number")
    return [int(cell) for cell in cells]


def infer_problem(table: RawTable, labels: Sequence[str] | None, separator: str | None) -> Problem:
    """Texts as lists of words mean tags; lists of labels, or a separator, mean multi-label; numbers with fractions
    mean regression."""
    if any(isinstance(text, list) for text in table.cells["text"]):
        return TOKENS
    labelled = zip(table.numbers, table.cells["label"], strict=True) if "label" in table.cells else ()
    cells = {number: cell for number, cell in labelled if not is_missing(cell)}
    if separator is not None or any(isinstance(cell, list) for cell in cells.values()):
        return MULTI_LABEL
    fractions = [cell for cell in cells.values() if is_number(cell) and not float(cell).is_integer()]
    if labels is None and not fractions:
        check_classes(table, [str(cell).strip() for cell in cells.values()])
    if labels is not None or not fractions:
        return SINGLE_LABEL
    for number, cell in cells.items():
        if not is_number(cell):
            raise BadData(
                f"{table.where(number)}: label {cell!r}, expected a number like {fractions[0]!r}. Fix the file, or "
                f"pass problem_type={SINGLE_LABEL!r} if these are class names."
            )
    return REGRESSION


def check_classes(table: RawTable, labels: Sequence[str]) -> None:
    """Labels that are nearly all different are ids or numbers, and longer than the texts if columns are swapped."""
    if len(labels) < ENOUGH_TO_JUDGE:
        return
    different, texts = {*labels}, [text for text in table.cells["text"] if isinstance(text, str)]
    confirm = f"pass problem_type={SINGLE_LABEL!r} if the labels are right"
    if len(different) > len({*texts}) and sum(map(len, labels)) > sum(map(len, texts)):
        raise BadData(
            f"{table.source}: text=... and label=... look swapped: a label is {labels[0][:60]!r}, its text "
            f"{texts[0][:60]!r}. Swap them, or {confirm}."
        )
    if len(different) > MOST_DIFFERENT * len(labels):
        numbers = (
            f"problem_type={REGRESSION!r} to predict them as numbers, or " if is_number(labels[0]) else ""
        )
        raise BadData(
            f"{table.source}: the labels look like ids: {len(labels)} rows have {len(different)} different ones. "
            f"Name the column of the labels with label=..., or {numbers}{confirm}."
        )


def infer_labels(table: RawTable, problem: Problem, separator: str | None) -> list[str]:
    """The labels that occur, sorted: as numbers if all are numbers, or else as text."""
    if "label" not in table.cells:
        raise BadData(f"{table.source}: no labels to infer the names from; pass labels=...")
    labels: set[str] = set()
    for number, cell in zip(table.numbers, table.cells["label"], strict=True):
        if not is_missing(cell) and (problem.multi_label or problem.of_tokens):
            labels.update(label_set(table, number, cell, separator))
        elif not is_missing(cell):
            labels.add(label_name(table, number, cell))
    if len(labels) < 2:
        only = f"the only label is {labels.pop()}" if labels else "no labels"
        raise BadData(f"{table.source}: {only}, expected at least two")
    if not problem.multi_label and not problem.of_tokens:
        check_not_joined(table, labels)
    return sorted(labels, key=float) if all(map(is_number, labels)) else sorted(labels)


def check_not_joined(table: RawTable, labels: set[str]) -> None:
    """A label that consists of other labels is several of them."""
    for label in sorted(labels):
        for mark in "|;,":
            parts = {part.strip() for part in label.split(mark)}
            if len(parts) > 1 and parts <= labels:
                raise BadData(
                    f"{table.source}: the label {label!r} consists of other labels; pass separator={mark!r} if it "
                    f"stands for all of them, or labels=... if it is a class of its own."
                )


def label_set(table: RawTable, number: int, cell: Any, separator: str | None) -> list[str]:
    """The labels of a multi-label example."""
    if isinstance(cell, list):
        return [label_name(table, number, label) for label in cell]
    if isinstance(cell, str) and separator is not None:
        return [label.strip() for label in cell.split(separator) if label.strip()]
    raise BadData(
        f"{table.where(number)}: label {cell!r}, expected a list of names; for text, pass separator=..."
    )


def label_name(table: RawTable, number: int, cell: Any) -> str:
    if is_missing(cell) or isinstance(cell, dict | list):
        raise BadData(f"{table.where(number)}: label {cell!r}, expected a name or a number")
    return cell_text(cell)


def cell_text(cell: Any) -> str:
    """A label or an id as text. A table with missing cells stores whole numbers as floats.

    >>> cell_text(" yes "), cell_text(1.0), cell_text(2**60)
    ('yes', '1', '1152921504606846976')
    """
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, blank, NaN or infinite."""
    if isinstance(cell, float):
        return not math.isfinite(cell)
    return cell is None or (isinstance(cell, str) and not cell.strip())


def is_number(cell: Any) -> bool:
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError):
        return False


def has_default_names(names: Sequence[str]) -> bool:
    """Whether these are transformers' placeholders, LABEL_0 and so on."""
    return list(names) == [f"LABEL_{index}" for index in range(len(names))]
