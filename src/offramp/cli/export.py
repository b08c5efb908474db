"""offramp export: a model as ONNX graphs that run without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from offramp.cli.command import Result
from offramp.cli.data import ColumnOptions, DataOptions, Split, collect_trace
from offramp.cli.options import ModelArgument, RuntimeOptions, check_output
from offramp.cli.targets import TargetOptions, choose_policy, search_facts, search_lines
from offramp.errors import BadOption
from offramp.files import atomic_folder

if TYPE_CHECKING:
    from offramp.model_info import ModelInfo


def export(
    model: ModelArgument,
    out: Annotated[Path, Option(help="Folder to create.")],
    data: DataOptions,
    columns: ColumnOptions,
    target: TargetOptions,
    precision: Annotated[
        str | None,
        Option(help="fp32, or int8: smaller and faster, with slightly different logits. By default fp32."),
    ] = None,
    portable: Annotated[
        bool,
        Option(
            "--portable",
            help="MODEL is an exported folder: write it and its policy for other libraries and languages.",
        ),
    ] = False,
    exit_logits: Annotated[
        bool,
        Option(
            "--exit-logits", help="With --portable: the graph also returns the logits of exits on the way."
        ),
    ] = False,
) -> Result:
    """Export a model to ONNX, to run without torch.

    ONNX Runtime runs the graphs without torch (extra `onnx`). The scales of int8 are found on texts like those
    that the model will run on, up to 256 of those in --data. The logits of int8 differ slightly, so its policy
    should be calibrated again: give held-out examples and a target to do that here. At most every fifth example
    is then used for the scales, and the others to calibrate. The rule is by default that of the stored policy.
    With --portable, an exported model with its policy becomes a standard Hugging Face folder with one graph, which
    exits early in any ONNX Runtime, such as that of transformers.js.

    \b
    Examples:
        offramp export runs/mine --out mine-onnx
        offramp export runs/mine --precision int8 --out mine-int8 --data logs.csv
        offramp export runs/mine --precision int8 --out mine-int8 --data held-out.csv --max-loss 0.5
        offramp export mine-onnx --portable --out mine-portable
    """
    from offramp.folder import find_model, megabytes
    from offramp.measuring.scores import measure
    from offramp.model_info import ModelInfo
    from offramp.onnx_export import export as export_model
    from offramp.reports.card import write_card
    from offramp.reports.stored_policy import store_policy
    from offramp.reports.table import short

    folder = find_model(model)
    if portable:
        if precision or data.is_set or target.names():
            raise BadOption(
                "--portable writes a model as it is; give --precision, data and targets without it."
            )
        return export_portable(folder, out, exit_logits)
    if exit_logits:
        raise BadOption("--exit-logits is an output of one graph: give it with --portable.")
    precision = precision or "fp32"
    info = ModelInfo.read(folder)
    calibrates = bool(target.names())
    if calibrates:
        target.check()
    if calibrates != data.is_set and (calibrates or precision != "int8"):
        raise BadOption("calibrating needs both examples and a target, such as --data and --max-loss.")
    check_output(out, force=None)
    sample = split = None
    if data.is_set:  # read first, so that bad data fails before the export
        split = data.load(info, columns, target.category)
        if precision == "int8":
            sample, split = split_sample(split, calibrates)
    with atomic_folder(out) as draft:
        export_model(folder, draft, precision, texts=sample)
        if split is not None and calibrates:
            trace = collect_trace(draft, split, RuntimeOptions())
            policy, trace, search = choose_policy(info, trace, target, target.rule or stored_rule(info))
    values = {"model": str(out), "precision": precision, "megabytes": megabytes(out)}
    lines = [f"{out}: {precision}, {values['megabytes']} MB"]
    if calibrates:
        store_policy(out, policy, trace, target.to_json(), target.point)
        values |= {
            "policy": str(policy),
            "certificate": policy.to_json()["certificate"],
            **search_facts(search),
            **measure(policy, trace),
        }
        lines.append(
            f"policy: {short(policy)}, {values['mean_layer']:.2f} of {values['layers']} layers on average"
        )
        lines += search_lines(search)
    else:
        write_card(out)
        if info.policy is not None and precision != "fp32":
            lines.append(
                f"the policy {short(info.policy)} was calibrated in another precision; calibrate it again:\n"
                f"  offramp trace {out} --data ... --out new.trace\n"
                f"  offramp calibrate {out} new.trace {target_flags(info)}"
            )
    return Result(values, "\n".join(lines))


def export_portable(folder: Path, out: Path, exit_logits: bool) -> Result:
    from offramp.folder import is_exported
    from offramp.folder.manifest import GRAPH
    from offramp.onnx_export.portable import write_portable

    if not is_exported(folder):
        raise BadOption(
            f"--portable takes an exported folder: first `offramp export {folder} --out NEW`, then "
            f"`offramp export NEW --portable --out {out}`."
        )
    check_output(out, force=None)
    write_portable(folder, out, exit_logits)
    size = round((out / GRAPH).stat().st_size / 1e6, 1)
    return Result(
        {"portable": str(out), "megabytes": size},
        f"{out}: for other libraries and languages; {GRAPH} has the model and its policy, {size} MB",
    )


def split_sample(split: Split, calibrates: bool) -> tuple[list[str], Split]:
    """Texts to find the scales of int8 on, and what is left to calibrate on.

    They are kept apart because a guarantee is about texts that the model has not seen.
    """
    from offramp.onnx_export.exporter import SAMPLE_TEXTS

    rows = range(len(split.texts))
    step = max(5 if calibrates else 1, -(-len(rows) // SAMPLE_TEXTS))
    return split.texts[::step], split.select([row for row in rows if row % step])


def target_flags(info: "ModelInfo") -> str:
    """The target that the stored policy was calibrated for, if that is known."""
    proof = None if info.policy is None else info.policy.certificate
    if proof is None:
        target = info.policy_target or {"max_loss": 0.5}
        values = {name: value if isinstance(value, str) else f"{value:g}" for name, value in target.items()}
        named = (f"--{name.replace('_', '-')} {value}" for name, value in values.items())
        return " ".join(named) + ("" if info.policy_target else "  # or another target")
    by_group = {bound.group: bound.epsilon for bound in proof.bounds}
    by_risk = {bound.risk: bound.epsilon for bound in proof.bounds}
    bounds = by_group if len({*by_group.values()}) > 1 else by_risk
    is_one = len({*bounds.values()}) == 1
    shown = (
        f"{proof.epsilon:g}" if is_one else ",".join(f"{name}={bound:g}" for name, bound in bounds.items())
    )
    flags = [f"--guarantee {shown}", f"--delta {proof.delta:g}"]
    flags += [f"--risk {','.join(by_risk)}"] if is_one or bounds is by_group else []
    flags += [f"--by {proof.by}"] if proof.by else []
    flags += [] if proof.tolerance is None else [f"--tolerance {proof.tolerance:g}"]
    return " ".join(flags)


def stored_rule(info: "ModelInfo") -> list[str] | None:
    """The rule of the stored policy, with its options and limits, if it has a threshold to set."""
    if info.policy is None or not info.policy.rule.takes_threshold:
        return None
    return [str(info.policy)]
