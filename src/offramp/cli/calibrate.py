"""offramp calibrate: the policy that reaches a target, stored with the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.card import store_policy
from offramp.cli.command import Answer
from offramp.cli.models import find_model, identity, known, read_config
from offramp.cli.timing import on_trace
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.calibration.targets import Target
    from offramp.policy import Policy
    from offramp.trace import Trace


TARGETS = ("guarantee", "max_loss", "min_speedup", "budget", "policy")


@dataclass(frozen=True)
class Wanted:
    """What the policy must reach: one of these."""

    guarantee: Annotated[
        str | None,
        Option(help="A bound on the risk, such as 0.02; or one for each class, spam=0.01,ham=0.02."),
    ] = None
    max_loss: Annotated[
        float | None, Option(help="Points of the score that may be lost on these examples, such as 0.5.")
    ] = None
    min_speedup: Annotated[
        float | None, Option(help="How many times cheaper than full depth, such as 2.")
    ] = None
    budget: Annotated[float | None, Option(help="Mean layers (or MACs) to spend, such as 3.5.")] = None
    policy: Annotated[str | None, Option(help="Store this policy as it is, such as entropy:0.3.")] = None
    delta: Annotated[float, Option(help="With --guarantee: the chance that the bound fails.")] = 0.05
    of: Annotated[
        str | None,
        Option(
            help="With --guarantee: disagreement (the default) or accuracy. "
            "With --min-speedup and --budget: layers (the default) or macs."
        ),
    ] = None
    tolerance: Annotated[
        float | None, Option(help="With --guarantee in a regression: how near is the same answer.")
    ] = None

    def target(self) -> "Target":
        from offramp.calibration import Budget, Guarantee, MaxLoss, MinSpeedup

        of: dict[str, Any] = {} if self.of is None else {"of": self.of}
        if self.guarantee is not None:
            return Guarantee(bounds(self.guarantee), self.delta, tolerance=self.tolerance, **of)
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
            raise BadOption(f"{len(self.given())} targets were given; give one of {flags}.")


def calibrate(
    model: Annotated[str, Argument(help="The folder of a model with exits.")],
    wanted: Wanted,
    trace: Annotated[
        Path | None, Argument(help="Its trace on examples held back for this; not needed with --policy.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        Option(help="The rule to set a threshold for, entropy by default; of several the best is taken."),
    ] = None,
    chosen_on: Annotated[
        str | None, Option(help="The data by which the rule was chosen, for the certificate.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the policy and store nothing.")] = False,
) -> Answer:
    """Set a threshold for a target, and store the policy.

    It is stored with the model, whose card tells of it. With a guarantee the policy carries a certificate. If
    no threshold reaches the target, nothing is stored and the exit code is 3.

    \b
    Examples:
        offramp calibrate runs/mrpc held-back.trace --guarantee 0.02
        offramp calibrate runs/mrpc held-back.trace --rule patience --max-loss 0.5
        offramp calibrate runs/mrpc --policy entropy:0.1
    """
    from offramp.trace import Trace

    wanted.check()
    folder = find_model(model)
    if wanted.policy is None and trace is None:
        raise BadOption("a target needs a trace: offramp calibrate MODEL TRACE ...")
    seen = None if trace is None else Trace.load(trace)
    if seen is not None:
        check_same_model(folder, seen)
    policy = chosen(folder, wanted, seen, rule or ["entropy"], chosen_on)
    found = {} if seen is None else on_trace(policy, seen)
    if not dry_run:
        if not Path(model).exists():
            raise BadOption(f"{model} is on the hub; download it first, or add --dry-run.")
        store_policy(folder, policy, seen)
    values = {"policy": str(policy), "certificate": policy.certificate, "stored": not dry_run, **found}
    return Answer(values, text(policy, found, folder, dry_run))


def bounds(text: str) -> float | dict[str, float]:
    """One bound, or one for each class named.

    >>> bounds("0.02"), bounds("spam=0.01,ham=0.02")
    (0.02, {'spam': 0.01, 'ham': 0.02})
    """
    numbers: dict[str, float] = {}
    try:
        for part in text.split(","):
            label, _, value = part.rpartition("=")
            numbers[label] = float(value)
    except ValueError:
        raise BadOption(f"--guarantee {text}: expected a share such as 0.02, or CLASS=0.02,...") from None
    return numbers[""] if list(numbers) == [""] else numbers


def check_same_model(folder: Path, trace: "Trace") -> None:
    """A threshold that was set by what another model says would mean nothing."""
    fingerprint, precision = identity(folder)
    other = (
        "weights" if trace.fingerprint != fingerprint else "numbers" if trace.precision != precision else None
    )
    if other is not None:
        raise BadOption(
            f"the trace of {trace.data} was collected from other {other} than those in {folder}; "
            "collect it again: offramp trace."
        )


def chosen(
    folder: Path, wanted: Wanted, trace: "Trace | None", rules: list[str], chosen_on: str | None
) -> "Policy":
    from offramp import calibration
    from offramp.policy import Policy

    if wanted.policy is None:
        assert trace is not None
        return calibration.calibrate(trace, rules, wanted.target(), chosen_on=chosen_on)
    policy = Policy.parse(wanted.policy).for_labels(known(folder).labels)
    config = read_config(folder)
    policy.begin(0, config["exits"], config["problem_type"])
    return policy


def text(policy: "Policy", found: dict[str, Any], folder: Path, dry_run: bool) -> str:
    from offramp.report.table import percent

    lines = [f"policy: {policy}"]
    if found:
        lines.append(f"on the trace: {found['mean_layer']:.2f} of {found['layers']} layers on average")
        full = found["full_depth"]
        lines += [
            f"{name}: {percent(full[name])} -> {percent(score)}" for name, score in found["scores"].items()
        ]
    if policy.certificate is not None:
        lines.append(f"certificate: {policy.certificate['promise']}")
    return "\n".join([*lines, "not stored" if dry_run else f"stored in {folder}"])
