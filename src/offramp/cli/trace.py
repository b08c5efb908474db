"""offramp trace: one pass over a data set, kept as a file from which every rule is measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from offramp.cli.command import Answer
from offramp.cli.data import Columns, Data
from offramp.cli.models import find_model, known
from offramp.cli.progress import watched

if TYPE_CHECKING:
    from offramp.trace import Trace


def trace(
    model: Annotated[str, Argument(help="A model with exits.")],
    out: Annotated[Path, Option(help="The file to write, such as dev.trace.")],
    data: Data,
    columns: Columns,
    max_length: Annotated[
        int | None, Option(help="Where texts are cut, in tokens; by default where the model's positions end.")
    ] = None,
    batch_tokens: Annotated[
        int | None,
        Option(help="Tokens in a micro-batch, padding included; by default what suits the runtime."),
    ] = None,
) -> Answer:
    """Run all exits once over examples, and keep what they say.

    Examples need no labels, but without them accuracy cannot be measured.

    \b
    Examples:
        offramp trace runs/mrpc --task mrpc --data glue --out mrpc.trace
        offramp trace runs/mine --data dev.csv --out dev.trace
    """
    found = traced(find_model(model), data, columns, max_length, batch_tokens)
    found.save(out)
    values = {
        "trace": str(out),
        "data": found.data,
        "examples": len(found),
        "layers": found.layers,
        "labelled": found.labels is not None,
        "fingerprint": found.fingerprint,
    }
    labelled = "labelled" if found.labels is not None else "unlabelled"
    return Answer(values, f"{out}: {len(found)} {labelled} examples, {len(found.layers)} exits")


def traced(
    folder: Path,
    data: Data,
    columns: Columns,
    max_length: int | None = None,
    batch_tokens: int | None = None,
) -> "Trace":
    """What the model in a folder says of the examples, on what runs it there."""
    from offramp.classifier import Classifier
    from offramp.collector import collect

    task = data.task_for(known(folder), columns)
    rows = task.load(data.part)[data.part]
    name = f"{task.name} {data.part}" if data.data is None or data.task else data.data.name
    classifier = Classifier.from_pretrained(folder, "never", budget=batch_tokens, max_length=max_length)
    return collect(classifier, rows, metrics=task.metrics, data=name, progress=watched())
