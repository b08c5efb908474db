"""offramp predict --ray: the same answers from many workers, as a folder of Parquet files."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from offramp.cli.command import Result
from offramp.errors import BadOption


@dataclass(frozen=True)
class Pool:
    """Who does the work, if it is not this process."""

    ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Many workers, on Ray: --ray [ADDRESS]. Reads a file or a folder, --out is a folder.",
        ),
    ] = False
    workers: Annotated[int | None, Option(help="With --ray: how many; by default one for each core.")] = None
    id: Annotated[
        str | None, Option(help="With --ray: a column to copy to the answers; by default id or idx.")
    ] = None


def predict_on_ray(
    model: Path, typed: list[str], out: Path | None, pool: Pool, threads: int | None, **options: Any
) -> Result:
    """`typed` is what was typed for texts and address."""
    from offramp.cluster import predict

    if not typed:
        raise BadOption("--ray reads a file or a folder; name it.")
    if len(typed) > 2:
        raise BadOption(f"--ray takes texts and maybe an address, not all of {', '.join(typed)}.")
    if out is None:
        raise BadOption("--ray writes a folder; say --out FOLDER.")
    source, address = typed[0], typed[1] if len(typed) > 1 else None
    if address is not None and Path(address).exists() and not Path(source).exists():
        source, address = address, source  # --ray ADDRESS before the texts
    options |= {"id": pool.id, "workers": pool.workers, "threads": threads or 1}
    done = predict(model, source, out, address=address, **options)
    line = f"{out}: {done.texts} answers, mean layer {done.mean_layer:.2f}, in {done.seconds:.0f} seconds"
    return Result({"out": str(out), **asdict(done)}, line)
