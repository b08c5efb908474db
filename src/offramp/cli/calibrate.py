"""offramp calibrate: choose the policy that reaches a target, and store it with the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.errors import BadOption
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.folder import ModelInfo
    from offramp.measuring import Calibration
    from offramp.measuring.targets import Target
    from offramp.policy import Policy
    from offramp.trace import Trace


DEFAULT_RULES_HELP = "By default agreement, entropy, confidence, margin and layer are tried."
LARGE_LOSS = 0.05
"""A drop in a metric that is worth a warning."""
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
        float | None, Option(help="How many times cheaper than full depth (see --cost), such as 2.")
    ] = None
    budget: Annotated[
        float | None, Option(help="Mean layers (or MACs, with --cost macs) per text, such as 3.5.")
    ] = None
    policy: Annotated[str | None, Option(help="Store this policy, such as entropy:0.3.")] = None
    delta: Annotated[
        float, Option(help="With --guarantee: the probability that the bound does not hold.")
    ] = 0.05
    risk: Annotated[str | None, Option(help="With --guarantee: changed (default) or accuracy.")] = None
    cost: Annotated[
        str | None,
        Option(help="With --min-speedup: macs (default) or layers. With --budget: layers (default) or macs."),
    ] = None
    tolerance: Annotated[
        float | None, Option(help="With --guarantee, for regression: predictions this close count as equal.")
    ] = None
    rule: Annotated[
        list[str] | None,
        Option(
            help="Rule to set a threshold for; repeat to choose the best of several. " + DEFAULT_RULES_HELP
        ),
    ] = None
    seed: Annotated[
        int, Option(help="Seed of the split into examples that a rule is fitted on and the others.")
    ] = 0
    allow_training_rows: Annotated[
        bool,
        Option("--allow-training-rows", help="Calibrate even on texts that the model was trained on."),
    ] = False

    def target(self) -> "Target":
        from offramp.measuring import Budget, Guarantee, MaxLoss, MinSpeedup

        if self.guarantee is not None:
            bounds = parse_bounds(self.guarantee)
            return Guarantee(bounds, self.delta, self.risk or "changed", self.tolerance)
        if self.max_loss is not None:
            return MaxLoss(self.max_loss)
        if self.min_speedup is not None:
            return MinSpeedup(self.min_speedup, self.cost or "macs")
        return Budget(float(self.budget or 0), self.cost or "layers")

    def given(self) -> list[str]:
        return [name for name in TARGETS if getattr(self, name) is not None]

    def flags(self) -> str | None:
        """The target as it is typed; None for a policy."""
        if self.policy is not None:
            return None
        (name,) = self.given()
        value = getattr(self, name)
        flag = f"--{name.replace('_', '-')} {value if isinstance(value, str) else f'{value:g}'}"
        options = {"risk": self.risk, "cost": self.cost}
        return " ".join([flag, *(f"--{key} {text}" for key, text in options.items() if text is not None)])

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
        offramp calibrate runs/mrpc held-out.trace --rule patience --max-loss 0.5
        offramp calibrate runs/mrpc --policy entropy:0.1
    """
    from offramp.folder import ModelInfo, find_model
    from offramp.measuring.scores import measure
    from offramp.reports.stored_policy import store_policy
    from offramp.reports.table import short
    from offramp.trace import Trace

    target.check()
    folder = find_model(model, replaces_policy=True)
    if not dry_run and not Path(model).exists():
        raise BadOption(f"{model} is on the hub; download it first, or add --dry-run.")
    if target.policy is None and trace is None:
        raise BadOption("this target needs a trace: offramp calibrate MODEL TRACE ...")
    found = None if trace is None else Trace.load(trace)
    if found is not None:
        check_same_model(folder, found)
    info = ModelInfo.read(folder, replaces_policy=True)
    policy, found, calibrated = choose_policy(info, found, target, target.rule, chosen_on)
    measured = {} if found is None else measure(policy, found)
    warn_about_loss(measured)
    if not dry_run:
        store_policy(folder, policy, found, target.flags())
    record, proof = policy.to_json(), policy.certificate
    values = {
        "policy": str(policy),
        "certificate": record["certificate"],
        "saved_policy": record,
        "stored": not dry_run,
        **search_facts(calibrated),
        **measured,
    }
    lines = [
        f"policy: {short(policy)}",
        *measured_lines(measured),
        *([f"certificate: {proof.summary} {proof.evidence}"] if proof else []),
        *search_lines(calibrated),
        "not stored (--dry-run)" if dry_run else f"stored in {folder}",
    ]
    return Result(values, "\n".join(lines))


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
    """Thresholds from the logits of another model, or of texts cut elsewhere, would be meaningless."""
    from offramp.inference import Classifier

    classifier = Classifier.from_pretrained(folder, "never")
    length, precision = classifier.tokenizer.max_length, classifier.runtime.precision
    if trace.fingerprint != classifier.runtime.about()["fingerprint"]:
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


def choose_policy(
    info: "ModelInfo",
    trace: Any,
    target: TargetOptions,
    rules: list[str] | None,
    chosen_on: str | None = None,
) -> tuple["Policy", Any, "Calibration | None"]:
    """The policy that was named, or one that reaches the target on the trace; the examples to measure it on, if there
    are any; and how it was found."""
    from offramp.measuring import find_policy

    if target.policy is not None:
        return info.check_policy(target.policy), trace, None
    found = find_policy(
        trace,
        rules or None,
        target.target(),
        seed=target.seed,
        chosen_on=chosen_on,
        allow_training_rows=target.allow_training_rows,
    )
    return found.policy, found.trace, found


def search_facts(found: "Calibration | None") -> dict[str, Any]:
    """How a policy was found, for JSON."""
    if found is None:
        return {"rules": [], "split": None, "static_cut": None}
    split = {"fitted_on": found.fitted_on, "calibrated_on": found.calibrated_on, "seed": found.seed}
    cut = found.static_cut
    return {
        "rules": list(found.rules),
        "split": {"rules": list(found.fitted), **split} if found.fitted else None,
        "static_cut": cut and {"policy": str(cut.policy), "mean_layer": cut.mean_layer},
    }


def search_lines(found: "Calibration | None") -> list[str]:
    """How a policy was found, for people."""
    if found is None:
        return []
    lines, proof, cut = [], found.policy.certificate, found.static_cut
    if len(found.rules) > 1:
        paid = f"; the certificate allows for the choice of {len(found.rules)}" if proof else ""
        lines.append(f"rules tried: {', '.join(found.rules)}{paid}")
    if found.fitted:
        lines.append(
            f"{', '.join(found.fitted)}: fitted on {found.fitted_on} examples of the trace, threshold set on the "
            f"other {found.calibrated_on} (--seed {found.seed})"
        )
    if cut is not None:
        layer = int(cut.policy.threshold)  # type: ignore[arg-type]
        smaller = f", or a smaller model (offramp train --layers {layer})" if layer else ""
        lines.append(f"a static cut at layer {layer} is as good: prefer --rule layer{smaller}")
    return lines


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
