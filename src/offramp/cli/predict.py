"""offramp predict and offramp predict-files: classify texts, or find their spans."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.cli.data import ColumnOptions, Split, find_task, match_labels
from offramp.cli.options import (
    DeviceOption,
    ExitsArgument,
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
    from offramp.inference import Prediction
    from offramp.inference.runner import Runner
    from offramp.inference.tagger import Spans
    from offramp.problems import Problem

STDIN = "-"
PREDICTED, TAGGED = ("decision", "label", "score", "layer"), ("spans", "layer")
BENCHMARKS = ("glue", "elue")


def predict(
    model: ExitsArgument,
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
    utf16: Annotated[
        bool,
        Option("--utf16", help="With a tagger: count offsets in units of UTF-16, as JavaScript and Java do."),
    ] = False,
    input_format: Annotated[str, Option(help="Format of stdin: txt, csv, tsv or jsonl.")] = "txt",
    submission: Annotated[
        str | None, Option(help="Write the files that a benchmark takes, glue or elue, for --task.")
    ] = None,
    task: Annotated[str | None, Option(help="With --submission: its task, such as mrpc.")] = None,
    data: Annotated[
        Path | None, Option(help="With --submission: folder of the task's files; the hub by default.")
    ] = None,
) -> Result:
    """Classify texts, or find their spans, each text with its own exit layer.

    Prints label, score, layer and text separated by tabs, or with --json one object per line; first the decision, if
    the model has an operating point. Files and --json also have the other columns of the input, such as an id; if one
    is called label, score, layer or decision, it becomes input_label and so on. A csv of a multi-label model has the
    probability of each label. For a folder of files, or a cluster, see predict-files.

    A tagger prints spans, layer and text. In jsonl and --json, spans are objects with start, end, label, score and
    text; in csv, the column spans has them as JSON. Texts of any length are read whole.

    \b
    Examples:
        echo "a gripping film" | offramp predict runs/mine
        offramp predict runs/mine new.csv --policy patience:3 --out predictions.csv
        offramp predict my-ner logs.csv --out spans.jsonl --utf16
        offramp predict runs/mrpc --submission glue --task mrpc --data glue --out submission
    """
    from offramp.folder import find_model
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
    rows = None if source is None else list(read_rows(source, text, text_pair))
    runner = runtime.load(folder, policy)
    info = runner.runtime.info
    check_tagger_options(info.problem, out, utf16)
    stream = read_stdin(input_format, text, text_pair) if rows is None else rows
    records = predict_records(runner, stream, max_layer, utf16, None if rows is None else len(rows))
    if out is not None:
        return write_records(
            (record for _, record in records), out, info.labels if info.problem.multi_label else (), safe_csv
        )
    short = (short_record(row, record, info.problem.of_tokens) for row, record in records)
    return Result((record for _, record in records), map(tsv_line, short))


def check_tagger_options(problem: "Problem", out: Path | None, utf16: bool) -> None:
    if utf16 and not problem.of_tokens:
        raise BadOption("--utf16 is about the offsets of spans, which only a tagger finds; leave it out.")
    if problem.of_tokens and out is not None and out.suffix.lower() == ".tsv":
        raise BadOption(
            f"{out}: in a tsv file line breaks become spaces, so offsets would not fit; write jsonl or csv."
        )


def predict_records(
    runner: "Runner", rows: Iterable[Row], max_layer: int | None, utf16: bool, total: int | None
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each row with the record of its prediction; at the end a summary on stderr."""
    from offramp.inference import Classifier
    from offramp.inference.tagger import Spans, Tagger

    pending: deque[Row] = deque()

    def remember() -> Iterator[Any]:
        for row in rows:
            pending.append(row)
            yield row.text

    info = runner.runtime.info
    predict: Any = (
        partial(Tagger(runner).tag, utf16=utf16) if info.problem.of_tokens else Classifier(runner).predict
    )
    predictions = predict(remember(), max_layer=max_layer)
    start, done, layers = time.perf_counter(), 0, 0
    for prediction in with_progress(predictions, "predicting", total):
        done, layers = done + 1, layers + prediction.layer
        row = pending.popleft()
        if isinstance(prediction, Spans):
            yield row, spans_record(row, prediction)
        else:
            yield row, record(row, prediction, not info.decide.is_argmax)
    if done:
        rate = done / (time.perf_counter() - start)
        mean, depth = layers / done, info.exits[-1]
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


def spans_record(row: Row, spans: "Spans") -> dict[str, Any]:
    records = [{**asdict(span), "score": rounded(span.score)} for span in spans]
    return {"spans": records, "layer": spans.layer, **input_columns(row, TAGGED)}


def short_record(row: Row, record: Mapping[str, Any], tags: bool) -> dict[Any, Any]:
    """What people read: the prediction and the text."""
    texts = [row.text] if isinstance(row.text, str) else row.text
    if tags:
        spans = "; ".join(f"{span['label']}: {span['text']}" for span in record["spans"])
        return {"spans": spans, "layer": record["layer"]} | dict(enumerate(texts))
    return {name: record[name] for name in PREDICTED if name in record} | dict(enumerate(texts))


def predict_submission(
    runner: "Runner", max_layer: int | None, elue: bool, task: "Task", out: Path
) -> Result:
    """Predicts the test set of a task in its benchmark's format; ELUE also wants the layers."""
    import numpy as np

    from offramp.data.submission import write_submission

    split = Split(task, task.name, task.columns("test"))
    decision = runner.decide(split.texts, runner.resolve_policy(runner.policy, max_layer))
    layers = np.asarray(runner.runtime.info.exits)[decision.exits]
    files = write_submission(
        task,
        split.columns["idx"],
        task.problem.decode(decision.logits).tolist(),
        out,
        layers=layers.tolist() if elue else None,
    )
    paths, mean = [str(file) for file in files], float(layers.mean())
    values = {"files": paths, "examples": len(layers), "mean_layer": mean}
    return Result(values, f"{', '.join(paths)}: {count(len(layers), 'prediction')}, mean layer {mean:.2f}")


@dataclass(frozen=True)
class ClusterOptions:
    """The options of `offramp.cluster.predict`."""

    policy: PolicyOption = None
    max_layer: MaxLayerOption = None
    text: TextOption = None
    text_pair: TextPairOption = None
    id: Annotated[str | None, Option(help="Column to copy to the predictions; by default id or idx.")] = None
    address: Annotated[
        str | None,
        Option(help="A running Ray cluster, such as auto or 10.0.0.1:6379; by default one is started here."),
    ] = None
    workers: Annotated[int | None, Option(min=1, help="Number of workers; by default one per core.")] = None
    device: DeviceOption = None
    threads: Annotated[int, Option(min=1, help="CPU threads of each worker.")] = 1
    max_length: Annotated[
        int | None, Option(help="Truncate texts to this many tokens; by default as in training.")
    ] = None


def predict_files(
    model: ExitsArgument,
    source: Annotated[Path, Argument(help="A txt, csv, tsv, jsonl or parquet file, or a folder of them.")],
    out: Annotated[Path, Option(help="A new folder for the predictions, as Parquet files.")],
    options: ClusterOptions,
) -> Result:
    """Predict many files in parallel, on Ray.

    Writes one row per text: file, row, the id if there is one, label, score and layer, and the decision if the model
    has an operating point. OUT/_done.json is written last; without it the run is unfinished. With --device cuda,
    each worker has a GPU to itself.

    \b
    Examples:
        offramp predict-files runs/mine texts/ --out predictions
        offramp predict-files runs/mine texts/ --out predictions --address auto
    """
    from offramp.cluster import predict as run
    from offramp.folder import find_model

    done = run(find_model(model), source, out, **asdict(options))
    predictions = count(done.texts, "prediction")
    line = f"{out}: {predictions}, mean layer {done.mean_layer:.2f}, in {done.seconds:.0f} s"
    return Result({"out": str(out), **asdict(done)}, line)
