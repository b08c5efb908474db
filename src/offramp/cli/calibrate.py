"""offramp calibrate: choose the policy that reaches a target, and store it with the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.cli.targets import TargetOptions, choose_policy, search_facts, search_lines
from offramp.errors import BadOption
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.trace import Trace


LARGE_LOSS = 0.05
"""A drop in a metric that is worth a warning."""


def calibrate(
    model: Annotated[str, Argument(help="Model folder or training run.")],
    target: TargetOptions,
    trace: Annotated[
        Path | None, Argument(help="Trace of this model on held-out examples; optional with --policy.")
    ] = None,
    chosen_on: Annotated[
        str | None, Option(help="Data on which the rule was chosen; recorded in the certificate.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the policy but do not store it.")] = False,
) -> Result:
    """Choose a policy that reaches a target, and store it.

    Without --rule, the best of several rules is chosen; with --guarantee they share delta, so that the
    certificate allows for the choice. The rule agreement learns: it is fitted on a third of the trace (at most
    2000 examples), and its threshold is set on the rest.

    The policy is stored with the model and described in its model card. With --guarantee it has a
    certificate. If no threshold reaches the target, nothing is stored and the exit code is 3.

    \b
    Examples:
        offramp calibrate runs/mrpc held-out.trace --guarantee 0.02
        offramp calibrate runs/guard held-out.trace --guarantee 0.02 --decide "jailbreak>=0.7"
        offramp calibrate runs/mrpc held-out.trace --rule patience --max-loss 0.5
        offramp calibrate runs/mrpc --policy entropy:0.1
    """
    from offramp.folder import find_model, is_exported
    from offramp.folder.manifest import PORTABLE
    from offramp.measuring.scores import measure
    from offramp.model_info import ModelInfo
    from offramp.reports.stored_policy import store_policy
    from offramp.reports.table import short
    from offramp.trace import Trace

    target.check()
    folder = find_model(model)
    if not dry_run and not Path(model).exists():
        raise BadOption(f"{model} is on the hub; download it first, or add --dry-run.")
    if target.policy is None and trace is None:
        raise BadOption("this target needs a trace: offramp calibrate MODEL TRACE ...")
    examples = None if trace is None else Trace.load(trace)
    if examples is not None:
        check_same_model(folder, examples)
    info = ModelInfo.read(folder, replaces_policy=True)
    policy, examples, search = choose_policy(info, examples, target, target.rule, chosen_on)
    measured = {} if examples is None else measure(policy, examples)
    warn_about_loss(measured)
    if not dry_run:
        store_policy(folder, policy, examples, target.to_json(), target.point)
    record, proof = policy.to_json(), policy.certificate
    values = {
        "policy": str(policy),
        "certificate": record["certificate"],
        "saved_policy": record,
        "stored": not dry_run,
        **search_facts(search),
        **measured,
    }
    lines = [
        f"policy: {short(policy)}",
        *measured_lines(measured),
        *([f"certificate: {proof.summary} {proof.evidence}"] if proof else []),
        *search_lines(search),
        "not stored (--dry-run)" if dry_run else f"stored in {folder}",
    ]
    portable = folder.parent / PORTABLE
    if not dry_run and is_exported(portable):
        lines.append(
            f"{portable} keeps its policy; to have this one: offramp export {folder} --portable --out NEW"
        )
    return Result(values, "\n".join(lines))


def check_same_model(folder: Path, trace: "Trace") -> None:
    """Thresholds from the logits of another model, or of texts cut elsewhere, would be meaningless."""
    from offramp.inference.runner import Runner

    runner = Runner.from_pretrained(folder, "never")
    length, precision = runner.tokenizer.max_length, runner.runtime.precision
    if trace.fingerprint != runner.runtime.fingerprint():
        difference = "with other weights than"
    elif trace.precision != precision:
        difference = f"in {trace.precision}, not in the {precision} of"
    elif trace.max_length not in (None, length):
        difference = f"with texts of up to {trace.max_length} tokens, not the {length} of"
    else:
        return
    raise BadOption(
        f"the trace of {trace.data} was collected {difference} {folder}; collect it again with `offramp trace`."
    )


def measured_lines(measured: dict[str, Any]) -> list[str]:
    from offramp.reports.table import percent

    if not measured:
        return []
    full = measured["full_depth"]
    return [
        f"on {count(measured['examples'], 'example')}: {measured['mean_layer']:.2f} of {measured['layers']} layers "
        "on average",
        *(f"{name}: {percent(full[name])} -> {percent(score)}" for name, score in measured["scores"].items()),
    ]


def warn_about_loss(measured: dict[str, Any]) -> None:
    """A guarantee is about single predictions; a metric of all of them, such as a correlation, may drop further."""
    for name, score in measured.get("scores", {}).items():
        full = measured["full_depth"][name]
        if full - score > LARGE_LOSS:
            log(
                f"warning: {name} drops from {100 * full:.1f} to {100 * score:.1f}; bound it with --max-loss, or "
                "choose a smaller --guarantee or --tolerance."
            )
