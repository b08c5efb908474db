"""offramp calibrate: choose the policy that reaches a target, and store it with the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.calibration.targets import Target
    from offramp.policy import Policy
    from offramp.trace import Trace


TARGETS = ("guarantee", "max_loss", "min_speedup", "budget", "policy")


@dataclass(frozen=True)
class TargetOptions:
    """What the policy must reach: one of TARGETS, and its options."""

    guarantee: Annotated[
        str | None,
        Option(help="Upper bound on the risk, such as 0.02; or one per class: spam=0.01,ham=0.02."),
    ] = None
    max_loss: Annotated[
        float | None, Option(help="Points of the headline metric that may be lost, such as 0.5.")
    ] = None
    min_speedup: Annotated[
        float | None, Option(help="How many times cheaper than full depth, such as 2.")
    ] = None
    budget: Annotated[
        float | None, Option(help="Mean layers (or MACs, with --of macs) per text, such as 3.5.")
    ] = None
    policy: Annotated[str | None, Option(help="Store this policy, such as entropy:0.3.")] = None
    delta: Annotated[
        float, Option(help="With --guarantee: the probability that the bound does not hold.")
    ] = 0.05
    of: Annotated[
        str | None,
        Option(
            help="With --guarantee: disagreement (default) or accuracy. "
            "With --min-speedup or --budget: layers (default) or macs."
        ),
    ] = None
    tolerance: Annotated[
        float | None, Option(help="With --guarantee, for regression: predictions this close count as equal.")
    ] = None

    def target(self) -> "Target":
        from offramp.calibration import Budget, Guarantee, MaxLoss, MinSpeedup

        of: dict[str, Any] = {} if self.of is None else {"of": self.of}
        if self.guarantee is not None:
            return Guarantee(parse_bounds(self.guarantee), self.delta, tolerance=self.tolerance, **of)
        if self.max_loss is not None:
            return MaxLoss(self.max_loss)
        if self.min_speedup is not None:
            return MinSpeedup(self.min_speedup, **of)
        return Budget(float(self.budget or 0), **of)

    def given(self) -> list[str]:
        return [name for name in TARGETS if getattr(self, name) is not None]

    def check(self) -> None:
        if len(self.given()) != 1:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in TARGETS)
            raise BadOption(f"expected exactly one of {flags}; got {len(self.given())}.")


def calibrate(
    model: Annotated[str, Argument(help="Model folder or training run.")],
    target: TargetOptions,
    trace: Annotated[
        Path | None, Argument(help="Trace of this model on held-out examples; optional with --policy.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        Option(help="Rule to set a threshold for (default: entropy); repeat to choose the best of several."),
    ] = None,
    chosen_on: Annotated[
        str | None, Option(help="Data on which the rule was chosen; recorded in the certificate.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the policy but do not store it.")] = False,
) -> Result:
    """Set a threshold that reaches a target, and store the policy.

    The policy is stored with the model and described in its model card. With --guarantee it has a
    certificate. If no threshold reaches the target, nothing is stored and the exit code is 3.

    \b
    Examples:
        offramp calibrate runs/mrpc held-out.trace --guarantee 0.02
        offramp calibrate runs/mrpc held-out.trace --rule patience --max-loss 0.5
        offramp calibrate runs/mrpc --policy entropy:0.1
    """
    from offramp.curves.measure import measure
    from offramp.store import find_model, store_policy
    from offramp.trace import Trace

    target.check()
    folder = find_model(model)
    if not dry_run and not Path(model).exists():
        raise BadOption(f"{model} is on the hub; download it first, or add --dry-run.")
    if target.policy is None and trace is None:
        raise BadOption("this target needs a trace: offramp calibrate MODEL TRACE ...")
    found = None if trace is None else Trace.load(trace)
    if found is not None:
        check_same_model(folder, found)
    policy = choose_policy(folder, target, found, rule or ["entropy"], chosen_on)
    measured = {} if found is None else measure(policy, found)
    if not dry_run:
        store_policy(folder, policy, found)
    record = policy.to_json()
    values = {
        "policy": str(policy),
        "certificate": record["certificate"],
        "saved_policy": record,
        "stored": not dry_run,
        **measured,
    }
    return Result(values, summary(policy, measured, folder, dry_run))


def parse_bounds(text: str) -> float | dict[str, float]:
    """One bound, or one per class.

    >>> parse_bounds("0.02"), parse_bounds("spam=0.01,ham=0.02")
    (0.02, {'spam': 0.01, 'ham': 0.02})
    """
    numbers: dict[str, float] = {}
    try:
        for part in text.split(","):
            label, _, value = part.rpartition("=")
            numbers[label] = float(value)
    except ValueError:
        raise BadOption(f"--guarantee {text}: expected a number such as 0.02, or CLASS=0.02,...") from None
    return numbers[""] if list(numbers) == [""] else numbers


def check_same_model(folder: Path, trace: "Trace") -> None:
    """Thresholds from the logits of another model would be meaningless."""
    from offramp.stages.torch import precision_name
    from offramp.store import Manifest, is_exported, load_model

    if is_exported(folder):
        manifest = Manifest.load(folder)
        fingerprint, precision = manifest.fingerprint, manifest.precision
    else:
        model, _ = load_model(folder)
        fingerprint, precision = model.fingerprint(), precision_name(model.dtype)
    if trace.fingerprint != fingerprint:
        difference = "with other weights than"
    elif trace.precision != precision:
        difference = f"in {trace.precision}, not in the {precision} of"
    else:
        return
    raise BadOption(
        f"the trace of {trace.data} was collected {difference} {folder}; collect it again with `offramp trace`."
    )


def choose_policy(
    folder: Path, target: TargetOptions, trace: "Trace | None", rules: list[str], chosen_on: str | None
) -> "Policy":
    from offramp import calibration
    from offramp.store import ModelInfo

    if target.policy is not None:
        return ModelInfo.read(folder).check_policy(target.policy)
    assert trace is not None
    return calibration.calibrate(trace, rules, target.target(), chosen_on=chosen_on)


def summary(policy: "Policy", measured: dict[str, Any], folder: Path, dry_run: bool) -> str:
    from offramp.reports.table import percent, short

    lines = [f"policy: {short(policy)}"]
    if measured:
        lines.append(f"on the trace: {measured['mean_layer']:.2f} of {measured['layers']} layers on average")
        full = measured["full_depth"]
        lines += [
            f"{name}: {percent(full[name])} -> {percent(score)}" for name, score in measured["scores"].items()
        ]
    if policy.certificate is not None:
        lines.append(f"certificate: {policy.certificate.summary}")
    return "\n".join([*lines, "not stored (--dry-run)" if dry_run else f"stored in {folder}"])
