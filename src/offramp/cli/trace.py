"""offramp trace: one pass over a data set, kept as a file from which every rule is measured."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Answer
from offramp.cli.data import Columns, Data
from offramp.cli.models import find_model, known, load
from offramp.cli.progress import watched


def trace(
    model: Annotated[str, Argument(help="A model with exits.")],
    out: Annotated[Path, Option(help="The file to write, such as dev.trace.")],
    data: Data,
    columns: Columns,
    max_length: Annotated[
        int | None, Option(help="Where texts are cut, in tokens; by default where the model's positions end.")
    ] = None,
    batch_tokens: Annotated[int, Option(help="Tokens in a batch, padding included.")] = 16_384,
) -> Answer:
    """Run all exits once over examples, and keep what they say.

    Examples need no labels, but without them accuracy cannot be measured.

    \b
    Examples:
        offramp trace runs/mrpc --task mrpc --data glue --out mrpc.trace
        offramp trace runs/mine --data dev.csv --out dev.trace
    """
    from offramp.trace import collect

    folder = find_model(model)
    task = data.task_for(known(folder), columns)
    rows = task.load(data.part)[data.part]
    loaded, tokenizer = load(folder)
    found = collect(
        loaded,
        rows,
        tokenizer,
        batch_tokens=batch_tokens,
        max_length=max_length,
        metrics=task.metrics,
        data=f"{task.name} {data.part}" if data.data is None or data.task else data.data.name,
        progress=watched(),
    )
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
