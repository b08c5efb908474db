"""offramp trace: one pass over a data set, kept as a file from which every rule is measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Answer
from offramp.cli.data import Columns, Data
from offramp.cli.models import find_model, known, load
from offramp.cli.progress import watched

if TYPE_CHECKING:
    from offramp.trace import Trace

BATCH_TOKENS = 16_384


def trace(
    model: Annotated[str, Argument(help="A model with exits.")],
    out: Annotated[Path, Option(help="The file to write, such as dev.trace.")],
    data: Data,
    columns: Columns,
    max_length: Annotated[
        int | None, Option(help="Where texts are cut, in tokens; by default where the model's positions end.")
    ] = None,
    batch_tokens: Annotated[int, Option(help="Tokens in a batch, padding included.")] = BATCH_TOKENS,
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
    batch_tokens: int = BATCH_TOKENS,
) -> "Trace":
    """What the model in a folder says of the examples, on what runs it there."""
    from offramp.classifier import Classifier
    from offramp.stages.manifest import is_exported
    from offramp.trace import collect

    task = data.task_for(known(folder), columns)
    rows = task.load(data.part)[data.part]
    about: dict[str, Any] = {
        "metrics": task.metrics,
        "data": f"{task.name} {data.part}" if data.data is None or data.task else data.data.name,
        "progress": watched(),
    }
    if not is_exported(folder):
        model, tokenizer = load(folder)
        return collect(model, rows, tokenizer, batch_tokens=batch_tokens, max_length=max_length, **about)
    classifier = Classifier.from_pretrained(folder, "never", budget=batch_tokens, max_length=max_length)
    return classifier.collect(rows, **about)
