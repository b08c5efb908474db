"""offramp trace: the logits of every exit for a dataset, saved as one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions
from offramp.cli.progress import in_terminal

if TYPE_CHECKING:
    from offramp.trace import Trace

BATCH_TOKENS = 16_384


def trace(
    model: Annotated[str, Argument(help="Model folder, training run or hub name.")],
    out: Annotated[Path, Option(help="File to write, such as dev.trace.")],
    data: DataOptions,
    columns: ColumnOptions,
    max_length: Annotated[
        int | None, Option(help="Truncate texts to this many tokens; by default to what the model supports.")
    ] = None,
    batch_tokens: Annotated[int, Option(help="Tokens per batch, including padding.")] = BATCH_TOKENS,
) -> Result:
    """Run every exit once over a dataset, and save the logits.

    `offramp curve` and `offramp calibrate` work from this file. Labels are optional, but needed to measure
    accuracy.

    \b
    Examples:
        offramp trace runs/mrpc --task mrpc --data glue --out mrpc.trace
        offramp trace runs/mine --data dev.csv --out dev.trace
    """
    from offramp.report.table import count
    from offramp.store import find_model

    found = collect_trace(find_model(model), data, columns, max_length, batch_tokens)
    found.save(out)
    values = {
        "trace": str(out),
        "data": found.data,
        "examples": len(found),
        "layers": found.layers,
        "labelled": found.labels is not None,
        "fingerprint": found.fingerprint,
    }
    kind = "labelled example" if found.labels is not None else "unlabelled example"
    return Result(values, f"{out}: {count(len(found), kind)}, {count(len(found.layers), 'exit')}")


def collect_trace(
    folder: Path,
    data: DataOptions,
    columns: ColumnOptions,
    max_length: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> "Trace":
    """Collect a trace in PyTorch, or in ONNX Runtime for an exported model."""
    from offramp.classifier import Classifier
    from offramp.store import ModelInfo, is_exported, load_model
    from offramp.trace import collect

    task = data.load_task(ModelInfo.read(folder), columns)
    rows = task.load(data.split_name)[data.split_name]
    options: dict[str, Any] = {
        "metrics": task.metrics,
        "data": f"{task.name} {data.split_name}" if data.data is None or data.task else data.data.name,
        "progress": in_terminal(),
    }
    if not is_exported(folder):
        model, tokenizer = load_model(folder)
        return collect(model, rows, tokenizer, batch_tokens=batch_tokens, max_length=max_length, **options)
    classifier = Classifier.from_pretrained(folder, "never", budget=batch_tokens, max_length=max_length)
    return classifier.collect(rows, **options)
