"""offramp predict: classify texts from a file or stdin, to a file or stdout."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.cli.data import ColumnOptions, find_task, match_labels, texts_of
from offramp.cli.options import (
    ForceOption,
    MaxLayerOption,
    PolicyOption,
    RuntimeOptions,
    SafeCsvOption,
    TextOption,
    TextPairOption,
    check_output,
)
from offramp.cli.progress import with_progress
from offramp.cli.rows import (
    PROBABILITIES,
    Row,
    check_format,
    input_columns,
    read_rows,
    read_stdin,
    rounded,
    tsv_line,
    write_records,
)
from offramp.errors import BadOption
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.data import Task
    from offramp.inference import Classifier, Prediction
    from offramp.inference.runner import Runner

STDIN = "-"
PREDICTED = ("decision", "label", "score", "layer")
BENCHMARKS = ("glue", "elue")


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
    safe_csv: SafeCsvOption = False,
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

    Prints label, score, layer and text separated by tabs, or with --json one object per line; first the decision, if
    the model has an operating point. Files and --json also have the other columns of the input, such as an id; if one
    is called label, score, layer or decision, it becomes input_label
    and so on. A csv of a multi-label model has the probability of each label. For a folder of files, or a cluster,
    see predict-files.

    \b
    Examples:
        echo "a gripping film" | offramp predict runs/mine
        offramp predict runs/mine new.csv --policy patience:3 --out predictions.csv
        offramp predict runs/mrpc --submission glue --task mrpc --data glue --out submission
    """
    from offramp.folder import find_model
    from offramp.inference import Classifier
    from offramp.model_info import ModelInfo

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
    if out is not None:
        check_format(out)
    given = None if source is None else list(read_rows(source, text, text_pair))
    classifier = Classifier(runtime.load(folder, policy))
    stream = read_stdin(input_format, text, text_pair) if given is None else given
    records = predict_records(classifier, stream, max_layer, None if given is None else len(given))
    if out is not None:
        several = classifier.runner.runtime.info.problem.multi_label
        return write_records(
            (record for _, record in records),
            out,
            classifier.runner.runtime.info.labels if several else (),
            safe_csv,
        )
    return Result((record for _, record in records), (tsv_line(short_record(*each)) for each in records))


def predict_records(
    classifier: "Classifier", rows: Iterable[Row], max_layer: int | None, total: int | None
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each row with the record of its prediction; at the end a summary on stderr."""
    pending: deque[Row] = deque()

    def remember() -> Iterator[Any]:
        for row in rows:
            pending.append(row)
            yield row.text

    decides = not classifier.runner.runtime.info.decide.is_argmax
    start, done, layers = time.perf_counter(), 0, 0
    for prediction in with_progress(classifier.predict(remember(), max_layer=max_layer), "predicting", total):
        done, layers = done + 1, layers + prediction.layer
        row = pending.popleft()
        yield row, record(row, prediction, decides)
    if done:
        rate = done / (time.perf_counter() - start)
        mean, depth = layers / done, classifier.runner.runtime.info.exits[-1]
        log(f"{count(done, 'text')}, mean layer {mean:.2f} of {depth}, {rate:.0f} texts/s")


def record(row: Row, prediction: "Prediction", decides: bool) -> dict[str, Any]:
    return {
        **({"decision": prediction.decision} if decides else {}),
        "label": prediction.label,
        "score": rounded(prediction.score),
        "layer": prediction.layer,
        PROBABILITIES: {name: rounded(value) for name, value in prediction.probabilities.items()},
        **input_columns(row, (*PREDICTED, PROBABILITIES)),
    }


def short_record(row: Row, record: Mapping[str, Any]) -> dict[Any, Any]:
    """What people read: the prediction and the text."""
    texts = [row.text] if isinstance(row.text, str) else row.text
    return {name: record[name] for name in PREDICTED if name in record} | dict(enumerate(texts))


def predict_submission(
    runner: "Runner", max_layer: int | None, elue: bool, task: "Task", out: Path
) -> Result:
    """Predicts the test set of a task in its benchmark's format; ELUE also wants the layers."""
    import numpy as np

    from offramp.data.submission import write_submission

    rows = task.columns("test")
    decision = runner.decide(texts_of(rows), runner.resolve_policy(runner.policy, max_layer))
    layers = np.asarray(runner.runtime.info.exits)[decision.exits]
    files = write_submission(
        task,
        rows["idx"],
        task.problem.decode(decision.logits).tolist(),
        out,
        layers=layers.tolist() if elue else None,
    )
    values = {
        "files": [str(file) for file in files],
        "examples": len(layers),
        "mean_layer": float(layers.mean()),
    }
    found = f"{count(len(rows['idx']), 'prediction')}, mean layer {layers.mean():.2f}"
    return Result(values, f"{', '.join(map(str, files))}: {found}")
