"""offramp export: a model becomes graphs that run without torch."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.atomic import atomic_folder
from offramp.cli.calibrate import Wanted, chosen
from offramp.cli.card import store_policy, write_card
from offramp.cli.command import Answer
from offramp.cli.data import Columns, Data
from offramp.cli.models import find_model, known, stored_policy
from offramp.cli.timing import on_trace
from offramp.cli.trace import traced
from offramp.errors import BadOption


def export(
    model: Annotated[str, Argument(help="A model with exits.")],
    out: Annotated[Path, Option(help="The folder to make.")],
    data: Data,
    columns: Columns,
    wanted: Wanted,
    precision: Annotated[str, Option(help="fp32, or int8: smaller, faster, a little off.")] = "fp32",
    rule: Annotated[
        list[str] | None,
        Option(help="The rule to set a threshold for; by default that of the model's policy, or entropy."),
    ] = None,
) -> Answer:
    """Write a model as ONNX graphs, one for each stage.

    ONNX Runtime runs them without torch: `pip install 'offramp[onnx]'`. In int8 the exits say something a little
    different, so thresholds should be set again: with examples and a target that is done here, on what the
    exported model says of them.

    \b
    Examples:
        offramp export runs/mine --out mine-onnx
        offramp export runs/mine --precision int8 --out mine-int8 --data held-back.csv --max-loss 0.5
    """
    from offramp import export as exporter
    from offramp.policy.text import criterion_name

    folder = find_model(model)
    again = bool(wanted.given())
    if again:
        wanted.check()
    if again != bool(data.task or data.data or data.hub):
        raise BadOption(
            "setting thresholds again takes both examples and a target: --data and --max-loss, say."
        )
    policy = stored_policy(folder)
    with atomic_folder(out) as half:
        if again:
            # what is wrong with it shows before the work
            data.task_for(known(folder), columns).load(data.part)
        exporter.export(folder, half, precision)
        if again:
            seen = traced(half, data, columns)
            rules = rule or ([criterion_name(policy.criterion)] if policy else ["entropy"])
            found = chosen(half, wanted, seen, rules, None)
    write_card(out)
    values = {"model": str(out), "precision": precision, "megabytes": megabytes(out)}
    lines = [f"{out}: {precision}, {values['megabytes']} MB"]
    if again:
        store_policy(out, found, seen)
        values |= {"policy": str(found), "certificate": found.certificate, **on_trace(found, seen)}
        lines.append(f"policy: {found}, {values['mean_layer']:.2f} of {values['layers']} layers on average")
    elif policy is not None and precision != "fp32":
        lines.append(
            f"its policy {policy} was set on other numbers; set it again on a trace of this one:\n"
            f"  offramp trace {out} --data ... --out new.trace\n"
            f"  offramp calibrate {out} new.trace --max-loss 0.5"
        )
    return Answer(values, "\n".join(lines))


def megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 1)
