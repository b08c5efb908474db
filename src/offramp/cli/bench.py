"""offramp bench: time full depth and a policy on this machine."""

from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Annotated, Any

from typer import Option

from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions
from offramp.cli.options import ModelArgument, RuntimeOptions
from offramp.cli.progress import in_terminal
from offramp.errors import BadOption
from offramp.wording import count


def bench(
    model: ModelArgument,
    data: DataOptions,
    columns: ColumnOptions,
    runtime: RuntimeOptions,
    policy: Annotated[
        str | None, Option(help="Policy to time, such as entropy:0.3; by default the stored one.")
    ] = None,
    repeats: Annotated[int, Option(min=1, help="Timed runs of each; the median is reported.")] = 5,
    limit: Annotated[int, Option(min=1, help="Use at most this many texts.")] = 1000,
) -> Result:
    """Time full depth and a policy on this machine.

    They take turns on the same texts, one text per call (up to 100 texts) and all of them at once. If the texts
    have labels, or words tags, both are scored too.

    \b
    Examples:
        offramp bench runs/mrpc --task mrpc --data glue
        offramp bench runs/mine --data dev.csv --policy entropy:0.3
    """
    from offramp.folder import find_model
    from offramp.inference import Classifier
    from offramp.inference.collect import collect
    from offramp.inference.runner import NEVER
    from offramp.inference.tagger import Tagger
    from offramp.measuring.speed import compare_speed, describe_machine, measure_contender
    from offramp.model_info import ModelInfo
    from offramp.reports.results import contender_rows
    from offramp.reports.table import format_table, short

    folder = find_model(model)
    info = ModelInfo.read(folder)
    split = data.load(info, columns)
    split = split.select(range(min(limit, len(split.texts))))
    runner = runtime.load(folder, policy)
    if runner.policy.rule.reads == "nothing":
        if policy is not None:
            raise BadOption(
                f"--policy {policy} is full depth, which is timed in any case; name another policy."
            )
        raise BadOption(f"{model} has no stored policy; use --policy, or store one with `offramp calibrate`.")
    policies = {"full depth": NEVER, short(runner.policy): runner.policy}
    predict: Any = Tagger(runner).tag if info.problem.of_tokens else Classifier(runner).predict
    trace = collect(runner, split.columns, metrics=split.task.metrics, progress=in_terminal())
    speeds = compare_speed(
        {name: partial(predict, policy=policy) for name, policy in policies.items()},
        split.texts,
        repeats=repeats,
        progress=in_terminal(),
    )
    contenders = [
        measure_contender(name, trace, policy, speeds[name], speeds["full depth"])
        for name, policy in policies.items()
    ]
    values = {
        "examples": len(split.texts),
        "layers": info.exits[-1],
        "repeats": repeats,
        "policy": str(runner.policy),
        "date": str(date.today()),
        **describe_machine(runtime.threads),
        "runs": [asdict(contender) for contender in contenders],
    }
    heading = f"{count(len(split.texts), 'text')}, median of {count(repeats, 'run')}"
    return Result(values, f"{heading}\n\n{format_table(contender_rows(contenders))}")
