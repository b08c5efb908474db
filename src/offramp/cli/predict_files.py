"""offramp predict-files: predict many files with a pool of Ray workers."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.options import DeviceOption, MaxLayerOption, PolicyOption, TextOption, TextPairOption
from offramp.wording import count


def predict_files(
    model: Annotated[str, Argument(help="A model with exits, or an exported one.")],
    source: Annotated[Path, Argument(help="A csv, tsv, jsonl or parquet file, or a folder of them.")],
    out: Annotated[Path, Option(help="A new folder for the predictions, as Parquet files.")],
    policy: PolicyOption = None,
    max_layer: MaxLayerOption = None,
    text: TextOption = None,
    text_pair: TextPairOption = None,
    id: Annotated[str | None, Option(help="Column to copy to the predictions; by default id or idx.")] = None,
    address: Annotated[
        str | None,
        Option(help="A running Ray cluster, such as auto or 10.0.0.1:6379; by default one is started here."),
    ] = None,
    workers: Annotated[int | None, Option(min=1, help="Number of workers; by default one per core.")] = None,
    device: DeviceOption = None,
    threads: Annotated[int, Option(min=1, help="CPU threads of each worker.")] = 1,
    max_length: Annotated[
        int | None, Option(help="Truncate texts to this many tokens; by default as in training.")
    ] = None,
) -> Result:
    """Predict many files in parallel, on Ray.

    Writes one row per text: file, row, the id if there is one, label, score and layer. OUT/_done.json is written
    last; without it the run is unfinished. With --device cuda, each worker has a GPU to itself.

    \b
    Examples:
        offramp predict-files runs/mine texts/ --out predictions
        offramp predict-files runs/mine texts/ --out predictions --address auto
    """
    from offramp.cluster import predict
    from offramp.folder import find_model

    done = predict(
        find_model(model),
        source,
        out,
        policy=policy,
        max_layer=max_layer,
        text=text,
        text_pair=text_pair,
        id=id,
        address=address,
        workers=workers,
        device=device,
        threads=threads,
        max_length=max_length,
    )
    predictions = count(done.texts, "prediction")
    line = f"{out}: {predictions}, mean layer {done.mean_layer:.2f}, in {done.seconds:.0f} s"
    return Result({"out": str(out), **asdict(done)}, line)
