"""offramp export: a model as ONNX graphs that run without torch."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.atomic import atomic_folder
from offramp.cli.calibrate import TargetOptions, choose_policy
from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions
from offramp.cli.trace import collect_trace
from offramp.errors import BadOption


def export(
    model: Annotated[str, Argument(help="Model folder, training run or hub name.")],
    out: Annotated[Path, Option(help="Folder to create.")],
    data: DataOptions,
    columns: ColumnOptions,
    target: TargetOptions,
    precision: Annotated[
        str, Option(help="fp32, or int8: smaller and faster, with slightly different logits.")
    ] = "fp32",
    rule: Annotated[
        list[str] | None,
        Option(help="Rule to set a threshold for; by default that of the stored policy, or entropy."),
    ] = None,
) -> Result:
    """Export a model to ONNX, one graph per stage.

    ONNX Runtime runs the graphs without torch (extra `onnx`). The logits of int8 differ slightly, so its
    policy should be calibrated again: give held-out examples and a target to do that here.

    \b
    Examples:
        offramp export runs/mine --out mine-onnx
        offramp export runs/mine --precision int8 --out mine-int8 --data held-out.csv --max-loss 0.5
    """
    from offramp.curves.measure import measure
    from offramp.onnx_export import export as export_model
    from offramp.policy.text import criterion_name
    from offramp.reports.table import short
    from offramp.store import ModelInfo, find_model, store_policy, write_card

    folder = find_model(model)
    info = ModelInfo.read(folder)
    calibrates = bool(target.given())
    if calibrates:
        target.check()
    if calibrates != data.given():
        raise BadOption("calibrating needs both examples and a target, such as --data and --max-loss.")
    with atomic_folder(out) as half:
        if calibrates:
            data.load_task(info, columns).load(data.split_name)  # so that bad data fails before the export
        export_model(folder, half, precision)
        if calibrates:
            trace = collect_trace(half, data, columns)
            rules = rule or [criterion_name(info.policy.criterion) if info.policy else "entropy"]
            policy = choose_policy(half, target, trace, rules, None)
    megabytes = round(sum(file.stat().st_size for file in out.iterdir()) / 1e6, 1)
    values = {"model": str(out), "precision": precision, "megabytes": megabytes}
    lines = [f"{out}: {precision}, {megabytes} MB"]
    if calibrates:
        store_policy(out, policy, trace)
        values |= {
            "policy": str(policy),
            "certificate": policy.to_json()["certificate"],
            **measure(policy, trace),
        }
        lines.append(
            f"policy: {short(policy)}, {values['mean_layer']:.2f} of {values['layers']} layers on average"
        )
    else:
        write_card(out)
    if info.policy is not None and not calibrates and precision != "fp32":
        lines.append(
            f"the policy {short(info.policy)} was calibrated in another precision; calibrate it again:\n"
            f"  offramp trace {out} --data ... --out new.trace\n"
            f"  offramp calibrate {out} new.trace --max-loss 0.5"
        )
    return Result(values, "\n".join(lines))
