"""offramp trace: the logits of every exit for a dataset, saved as one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions
from offramp.cli.progress import in_terminal
from offramp.errors import count

if TYPE_CHECKING:
    from offramp.trace import Trace


def trace(
    model: Annotated[str, Argument(help="Model folder, training run or hub name.")],
    out: Annotated[Path, Option(help="File to write, such as dev.trace.")],
    data: DataOptions,
    columns: ColumnOptions,
    max_length: Annotated[
        int | None, Option(help="Truncate texts to this many tokens; by default to what the model supports.")
    ] = None,
    batch_tokens: Annotated[
        int | None, Option(help="Tokens per batch, including padding; by default what suits the runtime.")
    ] = None,
) -> Result:
    """Run every exit once over a dataset, and save the logits.

    `offramp curve` and `offramp calibrate` work from this file. Labels are optional, but needed to measure
    accuracy.

    \b
    Examples:
        offramp trace runs/mrpc --task mrpc --data glue --out mrpc.trace
        offramp trace runs/mine --data dev.csv --out dev.trace
    """
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
    batch_tokens: int | None = None,
) -> "Trace":
    """Collect a trace in PyTorch, or in ONNX Runtime for an exported model."""
    from offramp.classifier import Classifier
    from offramp.collector import collect
    from offramp.store import ModelInfo

    task = data.load_task(ModelInfo.read(folder), columns)
    rows = task.load(data.split_name)[data.split_name]
    name = f"{task.name} {data.split_name}" if data.data is None or data.task else data.data.name
    classifier = Classifier.from_pretrained(folder, "never", budget=batch_tokens, max_length=max_length)
    return collect(classifier, rows, metrics=task.metrics, data=name, progress=in_terminal())
