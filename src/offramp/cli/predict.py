"""offramp predict: classify texts from a file or stdin, to a file or stdout."""

import csv
import io
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.atomic import atomic_file
from offramp.cli.command import Result, log
from offramp.cli.data import ColumnOptions, find_task, match_labels, texts_of
from offramp.cli.options import MaxLayerOption, PolicyOption, TextOption, TextPairOption
from offramp.cli.progress import with_progress
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.classifier import Classifier, Prediction
    from offramp.tasks import Task

STDIN = "-"
PROBABILITIES = "probabilities"
BENCHMARKS = ("glue", "elue")


def predict(
    model: Annotated[str, Argument(help="A model with exits, or an exported one.")],
    texts: Annotated[
        str, Argument(help="A txt (one text per line), csv, tsv, jsonl or parquet file, or - for stdin.")
    ] = STDIN,
    out: Annotated[
        Path | None,
        Option(help="A jsonl, csv or tsv file, or the folder of a submission; stdout by default."),
    ] = None,
    policy: PolicyOption = None,
    max_layer: MaxLayerOption = None,
    text: TextOption = None,
    text_pair: TextPairOption = None,
    input_format: Annotated[str, Option(help="Format of stdin: txt, csv, tsv or jsonl.")] = "txt",
    submission: Annotated[
        str | None, Option(help="Write the files that a benchmark takes, glue or elue, for --task.")
    ] = None,
    task: Annotated[str | None, Option(help="The task of the submission, such as mrpc.")] = None,
    data: Annotated[Path | None, Option(help="Folder of the task's files; the hub by default.")] = None,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
) -> Result:
    """Classify texts, each with its own exit layer.

    Prints label, score, layer and text separated by tabs, or with --json one object per line. For a folder of
    files, or a cluster, see predict-files.

    \b
    Examples:
        echo "a gripping film" | offramp predict runs/mine
        offramp predict runs/mine new.csv --policy patience:3 --out predictions.csv
        offramp predict runs/mrpc --submission glue --task mrpc --data glue --out submission
    """
    from offramp.classifier import Classifier
    from offramp.store import ModelInfo, find_model

    folder = find_model(model)
    if submission is not None:
        if submission not in BENCHMARKS or task is None or out is None:
            raise BadOption("a submission needs --submission glue or elue, --task NAME and --out FOLDER.")
        elue = submission == "elue"
        name = f"elue/{task.removeprefix('elue/')}" if elue else task
        test = match_labels(find_task(name, data, None, ColumnOptions()), ModelInfo.read(folder))
        classifier = Classifier.from_pretrained(folder, policy, threads=threads)
        return predict_submission(classifier, max_layer, elue, test, out)
    given = None if texts == STDIN else list(read_texts(texts, text, text_pair))
    classifier = Classifier.from_pretrained(folder, policy, threads=threads)
    stream = read_stdin(input_format, text, text_pair) if given is None else given
    records = predict_records(classifier, stream, max_layer, None if given is None else len(given))
    return Result(records, map(tsv_line, records)) if out is None else write_records(records, out)


def read_texts(name: str, text: str | None, text_pair: str | None) -> Iterator[Any]:
    """The texts of a file, or its pairs."""
    from offramp.tasks.files import ColumnMap, decode_lines, guess_columns, read_file

    path = Path(name)
    if not path.is_file():
        raise BadOption(f"{path}: no such file.")
    if path.suffix.lower() == ".txt":
        with path.open("rb") as lines:
            yield from decode_lines(lines, name)
        return
    file = read_file(path)
    found = guess_columns(name, file.column_names, text, text_pair, label="")  # labels are not read
    rows = file.select(ColumnMap(found.text, found.text_pair))
    if rows.faults:
        number, fault = next(iter(rows.faults.items()))
        raise BadOption(f"{rows.where(number)}: {fault}.")
    pairs = rows.cells.get("text_pair")
    yield from rows.cells["text"] if pairs is None else zip(rows.cells["text"], pairs, strict=True)


def read_stdin(kind: str, text: str | None, text_pair: str | None) -> Iterator[Any]:
    """Streams lines of text; other formats are read whole."""
    if kind == "txt":
        from offramp.tasks.files import decode_lines

        yield from decode_lines(sys.stdin.buffer, "stdin")
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"stdin.{kind}"
        file.write_bytes(sys.stdin.buffer.read())
        yield from read_texts(str(file), text, text_pair)


def predict_records(
    classifier: "Classifier", texts: Iterable[Any], max_layer: int | None, total: int | None
) -> Iterator[dict[str, Any]]:
    """A record for each text; at the end a summary on stderr."""
    pending: deque[Any] = deque()

    def remember() -> Iterator[Any]:
        for text in texts:
            pending.append(text)
            yield text

    start, count, layers = time.perf_counter(), 0, 0
    for prediction in with_progress(classifier.predict(remember(), max_layer=max_layer), "predicting", total):
        count, layers = count + 1, layers + prediction.layer
        yield record(pending.popleft(), prediction)
    if count:
        rate = count / (time.perf_counter() - start)
        mean, depth = layers / count, classifier.stages.layers[-1]
        texts_read = "1 text" if count == 1 else f"{count} texts"
        log(f"{texts_read}, mean layer {mean:.2f} of {depth}, {rate:.0f} texts/s")


def record(text: Any, prediction: "Prediction") -> dict[str, Any]:
    texts = {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
    return {
        "label": prediction.label,
        "score": rounded(prediction.score),
        "layer": prediction.layer,
        PROBABILITIES: {name: rounded(value) for name, value in prediction.probabilities.items()},
        **texts,
    }


def rounded(value: float) -> float | None:
    """To the precision of a float32; None for NaN and infinity, which JSON lacks."""
    return round(value, 6) if math.isfinite(value) else None


def write_records(records: Iterator[dict[str, Any]], out: Path) -> Result:
    """Writes a file in the format of its suffix."""
    if out.suffix.lower() not in LINES:
        raise BadOption(f"{out}: expected a file that ends in {', '.join(LINES)}.")
    to_line, count = LINES[out.suffix.lower()], 0
    with atomic_file(out) as half, half.open("w", encoding="utf-8", newline="") as file:
        for count, each in enumerate(records, 1):
            if count == 1 and to_line is not json_line:
                file.write(to_line({name: name for name in each}) + "\n")
            file.write(to_line(each) + "\n")
    return Result({"out": str(out), "examples": count}, f"{out}: {count} predictions")


def json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def csv_line(record: Mapping[str, Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells(record))
    return line.getvalue()


def tsv_line(record: Mapping[str, Any]) -> str:
    """Line breaks and tabs inside a text become spaces."""
    return "\t".join(" ".join(cell.split()) for cell in cells(record))


def cells(record: Mapping[str, Any]) -> list[str]:
    """All values but the probabilities; multiple labels are joined by commas."""
    label = record["label"]
    name = "" if label is None else label if isinstance(label, str) else ",".join(label)
    rest = [value for key, value in record.items() if key not in ("label", PROBABILITIES)]
    return [name, *("" if value is None else str(value) for value in rest)]


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
    return Result(
        values, f"{', '.join(map(str, files))}: {len(rows)} predictions, mean layer {layers.mean():.2f}"
    )
