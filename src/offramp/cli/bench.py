"""offramp bench: time full depth and a policy on this machine."""

from dataclasses import asdict
from datetime import date
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions, texts_of
from offramp.cli.options import RuntimeOptions
from offramp.cli.timing import machine, time_policies, timing_table
from offramp.errors import BadOption
from offramp.wording import count


def bench(
    model: Annotated[str, Argument(help="Model folder, training run or hub name.")],
    data: DataOptions,
    columns: ColumnOptions,
    runtime: RuntimeOptions,
    policy: Annotated[
        str | None, Option(help="Policy to time, such as entropy:0.3; by default the stored one.")
    ] = None,
    repeats: Annotated[int, Option(min=1, help="Timed runs of each; the median is reported.")] = 5,
    limit: Annotated[int, Option(min=1, help="Use at most this many texts.")] = 1000,
    one_by_one: Annotated[
        bool, Option("--one-by-one", help="Predict one text per call, like single requests.")
    ] = False,
) -> Result:
    """Time full depth and a policy on this machine.

    Both run alternately on the same texts. If the texts have labels, both are scored too.

    \b
    Examples:
        offramp bench runs/mrpc --task mrpc --data glue
        offramp bench runs/mine --data dev.csv --policy entropy:0.3 --one-by-one
    """
    from offramp.folder import ModelInfo, find_model

    folder = find_model(model)
    info = ModelInfo.read(folder)
    task = data.load_task(info, columns)
    rows = task.load(data.split_name)[data.split_name]
    rows = rows.select(range(min(limit, len(rows))))
    texts = texts_of(rows)
    classifier = runtime.load(folder, policy)
    if classifier.policy.rule.reads == "nothing":
        if policy is not None:
            raise BadOption(
                f"--policy {policy} is full depth, which is timed in any case; name another policy."
            )
        raise BadOption(f"{model} has no stored policy; use --policy, or store one with `offramp calibrate`.")
    labels = rows["label"] if "label" in rows.column_names else None
    timings = time_policies(classifier, texts, classifier.policy, repeats, labels, task.metrics, one_by_one)
    values = {
        "examples": len(texts),
        "layers": info.exits[-1],
        "repeats": repeats,
        "one_by_one": one_by_one,
        "date": str(date.today()),
        **machine(),
        "runs": [asdict(timing) for timing in timings],
    }
    heading = f"{count(len(texts), 'text')}, median of {count(repeats, 'run')}"
    return Result(values, f"{heading}\n\n{timing_table(timings)}")
