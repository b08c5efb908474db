"""offramp predict: classify texts from a file or stdin, to a file or stdout."""

import csv
import io
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from offramp.atomic import atomic_file
from offramp.cli.command import Result, log
from offramp.cli.data import ColumnOptions, find_task, match_labels, texts_of
from offramp.cli.options import (
    ForceOption,
    MaxLayerOption,
    PolicyOption,
    RuntimeOptions,
    TextOption,
    TextPairOption,
    check_output,
)
from offramp.cli.progress import with_progress
from offramp.errors import BadData, BadOption, count

if TYPE_CHECKING:
    from offramp.classifier import Classifier, Prediction
    from offramp.tasks import Task

STDIN = "-"
PREDICTED = ("label", "score", "layer")
PROBABILITIES = "probabilities"
BENCHMARKS = ("glue", "elue")


class Row(NamedTuple):
    """One text or pair, and the columns that it was read from."""

    text: Any
    columns: Mapping[str, Any]


def predict(
    model: Annotated[str, Argument(help="A model with exits, or an exported one.")],
    runtime: RuntimeOptions,
    texts: Annotated[
        str, Argument(help="A txt (one text per line), csv, tsv, jsonl or parquet file, or - for stdin.")
    ] = STDIN,
    out: Annotated[
        Path | None,
        Option(help="A jsonl, csv or tsv file, or the folder of a submission; stdout by default."),
    ] = None,
    force: ForceOption = False,
    policy: PolicyOption = None,
    max_layer: MaxLayerOption = None,
    text: TextOption = None,
    text_pair: TextPairOption = None,
    input_format: Annotated[str, Option(help="Format of stdin: txt, csv, tsv or jsonl.")] = "txt",
    submission: Annotated[
        str | None, Option(help="Write the files that a benchmark takes, glue or elue, for --task.")
    ] = None,
    task: Annotated[str | None, Option(help="With --submission: its task, such as mrpc.")] = None,
    data: Annotated[
        Path | None, Option(help="With --submission: folder of the task's files; the hub by default.")
    ] = None,
) -> Result:
    """Classify texts, each with its own exit layer.

    Prints label, score, layer and text separated by tabs, or with --json one object per line. Files and --json also
    have the other columns of the input, such as an id; if one is called label, score or layer, it becomes input_label
    and so on. A csv of a multi-label model has the probability of each label. For a folder of files, or a cluster,
    see predict-files.

    \b
    Examples:
        echo "a gripping film" | offramp predict runs/mine
        offramp predict runs/mine new.csv --policy patience:3 --out predictions.csv
        offramp predict runs/mrpc --submission glue --task mrpc --data glue --out submission
    """
    from offramp.problems import MULTI_LABEL
    from offramp.store import ModelInfo, find_model

    folder = find_model(model)
    source = None if texts == STDIN else Path(texts)
    if out is not None:
        check_output(out, force, source)
    if submission is not None:
        if submission not in BENCHMARKS or task is None or out is None:
            raise BadOption("a submission needs --submission glue or elue, --task NAME and --out FOLDER.")
        elue = submission == "elue"
        name = f"elue/{task.removeprefix('elue/')}" if elue else task
        test = match_labels(find_task(name, data, None, ColumnOptions()), ModelInfo.read(folder))
        return predict_submission(runtime.load(folder, policy), max_layer, elue, test, out)
    if task is not None or data is not None:
        raise BadOption(
            "--task and --data need --submission; to classify a file: offramp predict MODEL FILE."
        )
    if out is not None and out.suffix.lower() not in LINES:
        raise BadOption(f"{out}: expected a file that ends in {', '.join(LINES)}.")
    given = None if source is None else list(read_rows(source, text, text_pair))
    classifier = runtime.load(folder, policy)
    stream = read_stdin(input_format, text, text_pair) if given is None else given
    records = predict_records(classifier, stream, max_layer, None if given is None else len(given))
    if out is not None:
        several = classifier.stages.problem_type == MULTI_LABEL
        return write_records(
            (record for _, record in records), out, classifier.stages.labels if several else ()
        )
    return Result((record for _, record in records), (tsv_line(short_record(*each)) for each in records))


def read_rows(path: Path, text: str | None, text_pair: str | None) -> Iterator[Row]:
    """The texts of a file, or its pairs, with all columns."""
    from offramp.tasks.files import ColumnMap, decode_lines, guess_columns, no_texts, read_file

    if not path.is_file():
        raise BadOption(f"{path}: no such file.")
    if path.suffix.lower() == ".txt":
        with path.open("rb") as lines:
            yield from (Row(line, {"text": line}) for line in decode_lines(lines, str(path)))
        return
    file = read_file(path)
    file.check_not_empty()
    found = guess_columns(str(path), file.column_names, text, text_pair, label="")  # labels are not read
    table = file.select(ColumnMap(found.text, found.text_pair))
    faults = {**table.faults, **no_texts(table)}
    if faults:
        raise BadData(f"{table.where(min(faults))}: {faults[min(faults)]}. Fix the file.")
    texts = zip(*table.cells.values(), strict=True)
    for parts, (_, cells) in zip(texts, file.records, strict=True):
        columns = dict(zip(file.column_names, cells, strict=True))
        yield Row(parts if len(parts) > 1 else parts[0], columns)


def read_stdin(kind: str, text: str | None, text_pair: str | None) -> Iterator[Row]:
    """Streams lines of text; other formats are read whole."""
    if kind == "txt":
        from offramp.tasks.files import decode_lines

        yield from (Row(line, {"text": line}) for line in decode_lines(sys.stdin.buffer, "stdin"))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"stdin.{kind}"
        file.write_bytes(sys.stdin.buffer.read())
        yield from read_rows(file, text, text_pair)


def predict_records(
    classifier: "Classifier", rows: Iterable[Row], max_layer: int | None, total: int | None
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each row with the record of its prediction; at the end a summary on stderr."""
    pending: deque[Row] = deque()

    def remember() -> Iterator[Any]:
        for row in rows:
            pending.append(row)
            yield row.text

    start, done, layers = time.perf_counter(), 0, 0
    for prediction in with_progress(classifier.predict(remember(), max_layer=max_layer), "predicting", total):
        done, layers = done + 1, layers + prediction.layer
        row = pending.popleft()
        yield row, record(row, prediction)
    if done:
        rate = done / (time.perf_counter() - start)
        mean, depth = layers / done, classifier.stages.layers[-1]
        log(f"{count(done, 'text')}, mean layer {mean:.2f} of {depth}, {rate:.0f} texts/s")


def record(row: Row, prediction: "Prediction") -> dict[str, Any]:
    taken = {*PREDICTED, PROBABILITIES}
    return {
        "label": prediction.label,
        "score": rounded(prediction.score),
        "layer": prediction.layer,
        PROBABILITIES: {name: rounded(value) for name, value in prediction.probabilities.items()},
        **{f"input_{name}" if name in taken else name: value for name, value in row.columns.items()},
    }


def short_record(row: Row, record: Mapping[str, Any]) -> dict[Any, Any]:
    """What people read: the prediction and the text."""
    texts = [row.text] if isinstance(row.text, str) else row.text
    return {name: record[name] for name in PREDICTED} | dict(enumerate(texts))


def rounded(value: float) -> float | None:
    """To the precision of a float32; None for NaN and infinity, which JSON lacks."""
    return round(value, 6) if math.isfinite(value) else None


def write_records(records: Iterator[dict[str, Any]], out: Path, labels: Sequence[str]) -> Result:
    """Writes a file in the format of its suffix; a table has a column for each of the labels."""
    to_line, number = LINES[out.suffix.lower()], 0
    with atomic_file(out) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        for number, each in enumerate(records, 1):
            if to_line is not json_line:
                each |= {f"probability_{name}": each[PROBABILITIES][name] for name in labels}
                if number == 1:
                    file.write(to_line({name: name for name in each}) + "\n")
            file.write(to_line(each) + "\n")
    return Result({"out": str(out), "examples": number}, f"{out}: {count(number, 'prediction')}")


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
    """All values but the probabilities; multiple labels, which are a tuple, are joined by commas."""
    values = [value for key, value in record.items() if key != PROBABILITIES]
    return [
        ",".join(each) if isinstance(each, tuple) else "" if each is None else str(each) for each in values
    ]


LINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    ".jsonl": json_line,
    ".csv": csv_line,
    ".tsv": tsv_line,
}


def predict_submission(
    classifier: "Classifier", max_layer: int | None, elue: bool, task: "Task", out: Path
) -> Result:
    """Predicts the test set of a task in its benchmark's format; ELUE also wants the layers."""
    import numpy as np

    from offramp.problems import decode
    from offramp.tasks.submission import write_submission

    rows = task.load("test")["test"]
    decision = classifier.decide(texts_of(rows), classifier.resolve_policy(classifier.policy, max_layer))
    layers = np.asarray(classifier.stages.layers)[decision.exits]
    files = write_submission(
        task,
        rows["idx"],
        decode(decision.logits, task.problem_type).tolist(),
        out,
        layers=layers.tolist() if elue else None,
    )
    values = {
        "files": [str(file) for file in files],
        "examples": len(rows),
        "mean_layer": float(layers.mean()),
    }
    found = f"{count(len(rows), 'prediction')}, mean layer {layers.mean():.2f}"
    return Result(values, f"{', '.join(map(str, files))}: {found}")
