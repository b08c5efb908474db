"""Two files of predictions for the same rows, joined by id or by order. An error names the file and the line."""

import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offramp.data.checks import cell_text, is_number
from offramp.data.files import UserFile, check_not_empty, guess_columns, read_file
from offramp.errors import BadData
from offramp.numerics import Array
from offramp.wording import count

IDS = ("id", "idx", "uid", "guid")
PREDICTIONS = ("label", "prediction", "predicted", "predicted_label", "pred")
SCORE = "score"
PROBABILITY = "probability_"
PROBABILITIES = "probabilities"
"""A column of JSONL files with an object of scores, as `offramp predict` writes it."""


@dataclass(frozen=True)
class Columns:
    """What to read. A column that is not named is found by the usual names for it."""

    prediction: str | None = None
    id: str | None = None
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    """The correct labels, in either file."""
    scores: tuple[str, ...] | None = None
    """Read the scores of these labels, or all there are if none is named; None: read predictions."""
    numbers: bool = False
    """The predictions are numbers, not labels."""
    category: str | None = None
    """The categories of rows, in either file."""


@dataclass(frozen=True)
class PredictionPair:
    """The predictions of two files, in the order of the first."""

    old: Array
    new: Array
    """(rows,) labels or numbers, or (rows, labels) scores."""
    label_names: tuple[str, ...]
    """The names of the scores or labels; none if the predictions are numbers."""
    texts: list[Any] | None
    labels: Array | None
    """The correct ones."""
    categories: list[Any] | None = None


def read_pair(old: Path, new: Path, columns: Columns, label_names: Sequence[str] = ()) -> PredictionPair:
    """Reads both files; `label_names` are all labels, if one of the files may lack some."""
    first, second = align(read_table(old), read_table(new), columns)
    texts = [read_texts(table, columns) for table in (first, second)]
    check_same_texts(first, second, texts)
    labels = read_labels(first, second, columns)
    old_values, new_values, names = read_values(first, second, columns, label_names)
    categories = None
    if columns.category is not None:
        _, categories = cells_of_either(first, second, columns.category)
    return PredictionPair(old_values, new_values, names, texts[0] or texts[1], labels, categories)


def read_table(path: Path) -> UserFile:
    table = read_file(path)
    check_not_empty(table)
    width = len(table.column_names)
    for row, (_, cells) in enumerate(table.records):
        if len(cells) != width:
            raise BadData(f"{table.where(row)}: expected {count(width, 'column')}, found {len(cells)}")
    return table


def cells_of(table: UserFile, column: str) -> list[Any]:
    """The cells of a column, none of them empty."""
    cells = table.column(column)
    for row, cell in enumerate(cells):
        if cell is None or cell == "":
            raise BadData(f"{table.where(row)}: no {column}")
    return cells


def cells_of_either(old: UserFile, new: UserFile, column: str) -> tuple[UserFile, list[Any]]:
    """The cells of a column that one of the files has, and the file."""
    table = old if column in old.column_names else new
    return table, cells_of(table, column)


def read_values(
    old: UserFile, new: UserFile, columns: Columns, label_names: Sequence[str]
) -> tuple[Array, Array, tuple[str, ...]]:
    """The predictions of both, and the names of labels."""
    if columns.scores is not None:
        names, (old_scores, new_scores) = read_scores(old, new, columns.scores)
        return old_scores, new_scores, tuple(label_names) or names
    column = prediction_column(old, new, columns)
    if columns.numbers:
        return numbers(old, cells_of(old, column), column), numbers(new, cells_of(new, column), column), ()
    old_labels, new_labels = ([cell_text(cell) for cell in cells_of(table, column)] for table in (old, new))
    known = tuple(label_names) or shared_labels(old, new, old_labels, new_labels)
    check_labels(old, old_labels, known, "not one of the labels")
    check_labels(new, new_labels, known, "not one of the labels")
    return np.array(old_labels), np.array(new_labels), known


def align(old: UserFile, new: UserFile, columns: Columns) -> tuple[UserFile, UserFile]:
    """Both tables, with the records of the second in the order of the first."""
    usual = [name for name in IDS if name in old.column_names and name in new.column_names]
    column = columns.id or (usual[0] if usual else None)
    if column is None:
        warn_of_ids_of_one(old, new)
        if len(old) != len(new):
            longer, shorter = (old, new) if len(old) > len(new) else (new, old)
            raise BadData(
                f"{longer.where(len(shorter))}: {shorter.path} has only {count(len(shorter), 'row')}; give both "
                "files the same rows, or a column of ids"
            )
        return old, new
    places = [places_by_id(table, column) for table in (old, new)]
    for table, rows, other, other_rows in zip((old, new), places, (new, old), places[::-1], strict=True):
        missing = next((key for key in rows if key not in other_rows), None)
        if missing is not None:
            raise BadData(
                f"{table.where(rows[missing])}: {other.path} has no row with the {column} {missing!r}"
            )
    return old, replace(new, records=[new.records[places[1][key]] for key in places[0]])


def warn_of_ids_of_one(old: UserFile, new: UserFile) -> None:
    """Someone who gave ids in one file may expect rows to be joined by them."""
    for table, other in ((old, new), (new, old)):
        for name in IDS:
            if name in table.column_names:
                warnings.warn(
                    f"{table.path} has the column {name} and {other.path} has not, so their rows are joined by order",
                    stacklevel=2,
                )


def places_by_id(table: UserFile, column: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for row, cell in enumerate(cells_of(table, column)):
        key = cell_text(cell)
        if key in places:
            raise BadData(
                f"{table.where(row)}: the {column} {key!r} is also in {table.unit} {table.records[places[key]][0]}"
            )
        places[key] = row
    return places


def read_texts(table: UserFile, columns: Columns) -> list[Any] | None:
    """The texts, or pairs of texts; None if there is no column of them."""
    try:
        guess = guess_columns(str(table.path), table.column_names, columns.text, columns.text_pair, label="")
        chosen = [str(column) for column in (guess.text, guess.text_pair) if column is not None]
    except BadData:
        return None
    if any(column not in table.column_names for column in chosen):
        return None
    parts = [[str(cell) for cell in cells_of(table, column)] for column in chosen]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def check_same_texts(old: UserFile, new: UserFile, texts: Sequence[list[Any] | None]) -> None:
    if texts[0] is None or texts[1] is None:
        return
    for row, (one, other) in enumerate(zip(*texts, strict=True)):
        if one != other:
            raise BadData(
                f"{new.where(row)}: the text is not that of {old.where(row)}; give both files a column of ids"
            )


def read_labels(old: UserFile, new: UserFile, columns: Columns) -> Array | None:
    if columns.label is None:
        return None
    table, cells = cells_of_either(old, new, columns.label)
    if columns.numbers or columns.scores == (SCORE,):
        return numbers(table, cells, columns.label)
    return np.array([cell_text(cell) for cell in cells])


def prediction_column(old: UserFile, new: UserFile, columns: Columns) -> str:
    """The column that both files have: the one that is named, or the usual name, or the only one."""
    if columns.prediction is not None:
        return columns.prediction
    usual = (SCORE,) if columns.numbers else PREDICTIONS
    taken = (columns.id, columns.label, columns.category, *IDS)
    both = [name for name in old.column_names if name in new.column_names and name not in taken]
    candidates = [name for name in usual if name in both] or both
    if len(candidates) != 1 and not (candidates and candidates[0] in usual):
        raise BadData(
            f"{old.path} and {new.path}: which column has the predictions? Pass column=..., one of "
            f"{', '.join(both or old.column_names)}"
        )
    return candidates[0]


def read_scores(
    old: UserFile, new: UserFile, wanted: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Array, Array]]:
    """The names of the labels, and (rows, labels) their scores in both files."""
    scores = [score_cells(table, wanted) for table in (old, new)]
    for table, cells, other, others in zip((old, new), scores, (new, old), scores[::-1], strict=True):
        unknown = [name for name in cells if name not in others]
        if unknown:
            raise BadData(f"{other.path}: no scores of the label {unknown[0]!r}, which {table.path} has")
    names = tuple(scores[0])
    sides = [
        np.stack([numbers(table, cells[name], name) for name in names], 1)
        for table, cells in zip((old, new), scores, strict=True)
    ]
    return names, (sides[0], sides[1])


def score_cells(table: UserFile, wanted: tuple[str, ...]) -> dict[str, list[Any]]:
    """The cells with the scores of each label."""
    if PROBABILITIES in table.column_names:
        rows = cells_of(table, PROBABILITIES)
        for row, scores in enumerate(rows):
            if not isinstance(scores, dict) or scores.keys() != rows[0].keys():
                raise BadData(
                    f"{table.where(row)}: {PROBABILITIES} should be an object with a score of each label"
                )
        labelled = {name: [scores[name] for scores in rows] for name in rows[0]}
    else:
        labelled = {
            name.removeprefix(PROBABILITY): cells_of(table, name)
            for name in table.column_names
            if name.startswith(PROBABILITY)
        }
    names = wanted if wanted or labelled else (SCORE,)
    labelled |= {
        name: cells_of(table, name) for name in names if name not in labelled and name in table.column_names
    }
    missing = [name for name in wanted if name not in labelled]
    if missing or not labelled:
        label = missing[0] if missing else "LABEL"
        raise BadData(f"{table.path}: no scores; expected a column {PROBABILITY}{label} or {label}")
    return labelled


def numbers(table: UserFile, cells: Sequence[Any], column: str) -> Array:
    for row, cell in enumerate(cells):
        if isinstance(cell, bool) or not is_number(cell):
            raise BadData(f"{table.where(row)}: {cell!r} as {column}, expected a finite number")
    return np.array([float(cell) for cell in cells])


def shared_labels(
    old: UserFile, new: UserFile, old_labels: list[str], new_labels: list[str]
) -> tuple[str, ...]:
    """The labels of both files, each of which must be in the other too."""
    check_labels(old, old_labels, {*new_labels}, f"never in {new.path}")
    check_labels(new, new_labels, {*old_labels}, f"never in {old.path}")
    return tuple(sorted({*old_labels}))


def check_labels(table: UserFile, labels: Sequence[str], known: Container[str], fault: str) -> None:
    for row, label in enumerate(labels):
        if label not in known:
            raise BadData(
                f"{table.where(row)}: the label {label!r} is {fault}; if it belongs there, list all labels with "
                "label_names=..."
            )
