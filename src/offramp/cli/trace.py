"""offramp trace: the logits of every exit for a dataset, saved as one file."""

from pathlib import Path
from typing import Annotated

from typer import Option

from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions, collect_trace
from offramp.cli.options import ForceOption, ModelArgument, RuntimeOptions, check_output
from offramp.cli.progress import heartbeat
from offramp.errors import BadOption
from offramp.wording import count


def trace(
    model: ModelArgument,
    out: Annotated[Path, Option(help="File to write, such as dev.trace; with --checkpoints, a folder.")],
    data: DataOptions,
    columns: ColumnOptions,
    runtime: RuntimeOptions,
    force: ForceOption = False,
    batch_tokens: Annotated[
        int | None,
        Option(min=1, help="Tokens per batch, including padding; by default what suits the runtime."),
    ] = None,
    by: Annotated[
        str | None,
        Option(help="Column of a file, such as language, within whose values a guarantee is to hold."),
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
    from offramp.model_info import ModelInfo

    models = find_checkpoints(Path(model), out) if checkpoints else {out: find_model(model)}
    check_output(out, force, data.data)
    records, lines = [], []
    split = data.load(ModelInfo.read(next(iter(models.values()))), columns, by)
    for file, folder in models.items():
        with heartbeat(f"running every exit of {folder}"):
            collected = collect_trace(folder, split, runtime, batch_tokens)
        collected.save(file)
        records.append(
            {
                "trace": str(file),
                "data": collected.data,
                "examples": collected.whole_examples,
                "layers": collected.layers,
                "labelled": collected.labels is not None,
                "fingerprint": collected.fingerprint,
            }
        )
        kind = "labelled example" if collected.labels is not None else "unlabelled example"
        lines.append(
            f"{file}: {count(collected.whole_examples, kind)}, {count(len(collected.layers), 'exit')}"
        )
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
