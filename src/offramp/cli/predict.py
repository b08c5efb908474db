"""offramp predict: texts in, answers out, from file or stdin to file or stdout."""

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
from offramp.cli.predict_ray import Pool, predict_on_ray
from offramp.cli.progress import with_progress
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.classifier import Classifier, Prediction
    from offramp.tasks import Task

STDIN = "-"
CHANCES = "probabilities"
BENCHMARKS = ("glue", "elue")


def predict(
    model: Annotated[str, Argument(help="A model with exits.")],
    pool: Pool,
    texts: Annotated[
        str, Argument(help="A file (txt with a text on each line, csv, tsv, jsonl, parquet), or - for stdin.")
    ] = STDIN,
    address: Annotated[
        str | None,
        Argument(
            help="After --ray: a cluster, such as auto or 10.0.0.1:6379; by default one is started here."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="A file (jsonl, csv, tsv), or the folder of a submission or of --ray; stdout by default."
        ),
    ] = None,
    policy: Annotated[
        str | None, Option(help="When to leave, such as entropy:0.3; the model's own by default.")
    ] = None,
    max_layer: Annotated[int | None, Option(help="Everybody leaves here at the latest.")] = None,
    text: Annotated[str | None, Option(help="Column of the text; guessed from its name by default.")] = None,
    text_pair: Annotated[str | None, Option(help="Column of the second text, for pairs.")] = None,
    input_format: Annotated[str, Option(help="How stdin is written: txt, csv, tsv or jsonl.")] = "txt",
    submission: Annotated[
        str | None, Option(help="Write the files that a benchmark takes, glue or elue, for --task.")
    ] = None,
    task: Annotated[str | None, Option(help="The task of the submission, such as mrpc.")] = None,
    data: Annotated[
        Path | None, Option(help="The folder of the task's files, else the hub; with --ray, the texts.")
    ] = None,
    threads: Annotated[
        int | None, Option(help="Threads on the CPU; with --ray, of each worker, by default 1.")
    ] = None,
) -> Result:
    """Answer texts, each at a layer of its own.

    The policy decides where a text leaves. On stdout: label, score, layer and text with tabs between them, or
    with --json an object on each line.

    \b
    Examples:
        echo "a gripping film" | offramp predict runs/mine
        offramp predict runs/mine new.csv --policy patience:3 --out answers.csv
        offramp predict runs/mrpc --submission glue --task mrpc --data glue --out submission
        offramp predict runs/mine texts/ --ray --out answers
    """
    from offramp.classifier import Classifier
    from offramp.store import ModelInfo, find_model

    folder = find_model(model)
    if pool.ray:
        typed = [str(each) for each in (data, texts, address) if each not in (None, STDIN)]
        names = {"text": text, "text_pair": text_pair}
        return predict_on_ray(folder, typed, out, pool, threads, policy=policy, max_layer=max_layer, **names)
    if address is not None:
        raise BadOption(f"{address} is one argument too many; the address of a cluster goes with --ray.")
    if submission is not None:
        if submission not in BENCHMARKS or task is None or out is None:
            raise BadOption("a submission needs --submission glue or elue, --task NAME and --out FOLDER.")
        elue = submission == "elue"
        name = f"elue/{task.removeprefix('elue/')}" if elue else task
        wanted = match_labels(find_task(name, data, None, ColumnOptions()), ModelInfo.read(folder))
        classifier = Classifier.from_pretrained(folder, policy, threads=threads)
        return submitted(classifier, max_layer, elue, wanted, out)
    given = None if texts == STDIN else list(read_texts(texts, text, text_pair))
    classifier = Classifier.from_pretrained(folder, policy, threads=threads)
    stream = read_stdin(input_format, text, text_pair) if given is None else given
    records = answered(classifier, stream, max_layer, None if given is None else len(given))
    return Result(records, map(tsv_line, records)) if out is None else written(records, out)


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
    """Lines as they come; other kinds are read as files are."""
    if kind == "txt":
        from offramp.tasks.files import decode_lines

        yield from decode_lines(sys.stdin.buffer, "stdin")
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"stdin.{kind}"
        file.write_bytes(sys.stdin.buffer.read())
        yield from read_texts(str(file), text, text_pair)


def answered(
    classifier: "Classifier", texts: Iterable[Any], max_layer: int | None, total: int | None
) -> Iterator[dict[str, Any]]:
    """Each text with its answer; at the end a line about all of them."""
    asked: deque[Any] = deque()

    def remembered() -> Iterator[Any]:
        for text in texts:
            asked.append(text)
            yield text

    begin, count, layers = time.perf_counter(), 0, 0
    for prediction in with_progress(
        classifier.predict(remembered(), max_layer=max_layer), "predicting", total
    ):
        count, layers = count + 1, layers + prediction.layer
        yield record(asked.popleft(), prediction)
    if count:
        rate = count / (time.perf_counter() - begin)
        mean, depth = layers / count, classifier.stages.layers[-1]
        log(f"{count} texts, {mean:.2f} of {depth} layers on average, {rate:.0f} texts a second")


def record(text: Any, prediction: "Prediction") -> dict[str, Any]:
    texts = {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
    return {
        "label": prediction.label,
        "score": rounded(prediction.score),
        "layer": prediction.layer,
        CHANCES: {name: rounded(value) for name, value in prediction.probabilities.items()},
        **texts,
    }


def rounded(value: float) -> float | None:
    """To what a float32 can tell; JSON knows neither NaN nor infinity."""
    return round(value, 6) if math.isfinite(value) else None


def written(records: Iterator[dict[str, Any]], out: Path) -> Result:
    """Into a file whose ending says how."""
    if out.suffix.lower() not in LINES:
        raise BadOption(f"{out}: expected a file that ends in {', '.join(LINES)}.")
    as_line, count = LINES[out.suffix.lower()], 0
    with atomic_file(out) as half, half.open("w", encoding="utf-8", newline="") as file:
        for count, each in enumerate(records, 1):
            if count == 1 and as_line is not json_line:
                file.write(as_line({name: name for name in each}) + "\n")
            file.write(as_line(each) + "\n")
    return Result({"out": str(out), "examples": count}, f"{out}: {count} answers")


def json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def csv_line(record: Mapping[str, Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells(record))
    return line.getvalue()


def tsv_line(record: Mapping[str, Any]) -> str:
    """Breaks and tabs inside a text become spaces."""
    return "\t".join(" ".join(cell.split()) for cell in cells(record))


def cells(record: Mapping[str, Any]) -> list[str]:
    """All but the probabilities; several labels have commas between them."""
    label = record["label"]
    name = "" if label is None else label if isinstance(label, str) else ",".join(label)
    rest = [value for key, value in record.items() if key not in ("label", CHANCES)]
    return [name, *("" if value is None else str(value) for value in rest)]


LINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    ".jsonl": json_line,
    ".csv": csv_line,
    ".tsv": tsv_line,
}


def submitted(classifier: "Classifier", max_layer: int | None, elue: bool, task: "Task", out: Path) -> Result:
    """Answers to the test set of a task, as its benchmark wants them; ELUE also asks for the layers."""
    import numpy as np

    from offramp.tasks.metrics import answers
    from offramp.tasks.submission import write_submission

    rows = task.load("test")["test"]
    decision = classifier.decide(texts_of(rows), classifier.resolve_policy(classifier.policy, max_layer))
    layers = np.asarray(classifier.stages.layers)[decision.exits]
    files = write_submission(
        task,
        rows["idx"],
        answers(decision.logits, task.problem_type).tolist(),
        out,
        layers=layers.tolist() if elue else None,
    )
    values = {
        "files": [str(file) for file in files],
        "examples": len(rows),
        "mean_layer": float(layers.mean()),
    }
    return Result(
        values, f"{', '.join(map(str, files))}: {len(rows)} answers, mean layer {layers.mean():.2f}"
    )
