"""offramp trace: the logits of every exit for a dataset, saved as one file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.cli.data import ColumnOptions, DataOptions
from offramp.cli.options import ForceOption, RuntimeOptions, check_output
from offramp.cli.progress import in_terminal
from offramp.errors import BadOption
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.trace import Trace

SWAPPED = 0.75
"""The share of rows that renamed labels must explain before they count as swapped."""


def trace(
    model: Annotated[str, Argument(help="Model folder, training run or hub name.")],
    out: Annotated[Path, Option(help="File to write, such as dev.trace; with --checkpoints, a folder.")],
    data: DataOptions,
    columns: ColumnOptions,
    runtime: RuntimeOptions,
    force: ForceOption = False,
    batch_tokens: Annotated[
        int | None,
        Option(min=1, help="Tokens per batch, including padding; by default what suits the runtime."),
    ] = None,
    checkpoints: Annotated[
        bool, Option("--checkpoints", help="One trace of each checkpoint of a training run.")
    ] = False,
) -> Result:
    """Run every exit once over a dataset, and save the logits.

    `offramp curve` and `offramp calibrate` work from this file. Labels are optional, but needed to measure
    accuracy. If the model was retrofitted and differs from the original at full depth (int8, or --tune), the
    original runs too: its predictions are those to keep.

    `offramp train` keeps the best checkpoint alone; --argument save_total_limit=none keeps all.

    \b
    Examples:
        offramp trace runs/mrpc --task mrpc --data glue --out mrpc.trace
        offramp trace runs/mine --data dev.csv --out dev.trace
        offramp trace runs/mine --data dev.csv --checkpoints --out traces
    """
    from offramp.folder import find_model

    models = find_checkpoints(Path(model), out) if checkpoints else {out: find_model(model)}
    check_output(out, force, data.data)
    records, lines = [], []
    for file, folder in models.items():
        collected = collect_trace(folder, data, columns, runtime, batch_tokens)
        collected.save(file)
        records.append(
            {
                "trace": str(file),
                "data": collected.data,
                "examples": len(collected),
                "layers": collected.layers,
                "labelled": collected.labels is not None,
                "fingerprint": collected.fingerprint,
            }
        )
        kind = "labelled example" if collected.labels is not None else "unlabelled example"
        lines.append(f"{file}: {count(len(collected), kind)}, {count(len(collected.layers), 'exit')}")
    return Result({"traces": records} if checkpoints else records[0], "\n".join(lines))


def find_checkpoints(run: Path, out: Path) -> dict[Path, Path]:
    """The checkpoints of all phases of a training run, in their order, by the file of their trace."""
    folders = {
        (phase.name, int(folder.name.removeprefix("checkpoint-"))): folder
        for phase in run.glob("phase-*")
        for folder in phase.glob("checkpoint-*")
    }
    if not folders:
        raise BadOption(f"{run}: no checkpoints found; expected a training run with phase-1/checkpoint-*.")
    width = max(len(str(step)) for _, step in folders)
    return {
        out / f"{phase}-step-{step:0{width}}.trace": folders[phase, step] for phase, step in sorted(folders)
    }


def collect_trace(
    folder: Path,
    data: DataOptions,
    columns: ColumnOptions,
    runtime: RuntimeOptions,
    batch_tokens: int | None = None,
    chosen: Sequence[int] | None = None,
) -> "Trace":
    """Collect a trace of all rows or the chosen ones, in PyTorch, or in ONNX Runtime for an exported model.

    If the folder contains the model whose predictions are to be kept, the trace has its logits too.
    """
    from offramp.folder import ModelInfo
    from offramp.folder.folder import REFERENCE
    from offramp.inference.collect import collect
    from offramp.reports.results import RetrofitResults

    task = data.load_task(ModelInfo.read(folder), columns)
    rows = task.load(data.split_name)[data.split_name]
    rows = rows if chosen is None else rows.select(chosen)
    name = f"{task.name} {data.split_name}" if data.data is None or data.task else data.data.name
    classifier = runtime.load(folder, "never", batch_tokens=batch_tokens)
    found = collect(classifier, rows, metrics=task.metrics, data=name, progress=in_terminal())
    if (folder / REFERENCE).is_dir():
        original = RetrofitResults.load(folder).original
        log(f"running {original}, whose predictions are to be kept")
        same_length = replace(runtime, max_length=classifier.tokenizer.max_length)
        reference = same_length.load(folder / REFERENCE, "never", batch_tokens=batch_tokens)
        logits = collect(reference, rows, progress=in_terminal()).logits[:, -1]
        found = replace(found, reference=logits, reference_name=original)
    warn_about_swapped_labels(found)
    return found


def warn_about_swapped_labels(trace: "Trace") -> None:
    """Labels in the wrong order: the model is mostly wrong, and right if its labels are renamed."""
    import numpy as np

    from offramp.problems import SINGLE_LABEL

    if trace.labels is None or trace.problem != SINGLE_LABEL or not trace.label_names:
        return
    classes = len(trace.label_names)
    counts = np.zeros((classes, classes))
    np.add.at(counts, (trace.logits[:, -1].argmax(-1), trace.labels), 1)
    usual = counts.argmax(-1)  # the most frequent label where the model predicts a class
    right, renamed = np.trace(counts), counts[np.arange(classes), usual].sum()
    if len({*usual}) == classes and right < len(trace) / classes and renamed > SWAPPED * len(trace):
        names = trace.label_names
        pairs = [
            f"{names[label]} where the model predicts {names[index]}" for index, label in enumerate(usual)
        ]
        log(
            f"warning: the labels look swapped: most rows are labelled {', '.join(pairs)}. Check the order of the "
            "model's label names."
        )
