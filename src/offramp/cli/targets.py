"""What a policy must reach: the flags of a target, and the search for a policy."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from typer import Option

from offramp.cli.command import log
from offramp.cli.options import category_column
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.guarantees.operating_point import OperatingPoint
    from offramp.measuring import Calibration, Guarantee
    from offramp.measuring.targets import Target
    from offramp.model_info import ModelInfo
    from offramp.policy import Policy
    from offramp.trace import Trace

DEFAULT_RULES_HELP = (
    "By default agreement, entropy and layer are tried, and with 3 or more classes confidence and margin."
)
RISK_HELP = (
    "changed (default); for yes or no, missed and false_alarm (shares of the original's yes and no), missed_of_all, "
    "false_alarm_of_all; score (one moves by more than --tolerance); with labels accuracy (correct predictions lost) "
    "or accuracy_drop (those lost minus those gained); for taggers changed (any span), missed (a word in a span is "
    "now in none) or missed_share (of such words)"
)
BY_HELP = "it holds within each group: exit, class, or a column of the texts, such as language."
FILES_OF_BOUNDS = (".json", ".yaml", ".yml")
TARGETS = ("guarantee", "max_loss", "min_speedup", "budget", "policy")


@dataclass(frozen=True)
class TargetOptions:
    """What the policy must reach: one of TARGETS, and its options."""

    guarantee: Annotated[
        str | None,
        Option(
            help="Upper bound on the risk, such as 0.02; or several, proven together: missed=0.02,false_alarm=0.05; "
            "or one per class: spam=0.01,ham=0.02; or a json or yaml file of them."
        ),
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
    risk: Annotated[
        str | None,
        Option(help=f"With --guarantee: {RISK_HELP}."),
    ] = None
    by: Annotated[str | None, Option(help=f"With --guarantee: {BY_HELP}")] = None
    decide: Annotated[
        str | None,
        Option(
            help="Operating point, such as 'jailbreak>=0.7', stored with the model; by default the model's own, or "
            "the most likely label, which '' restores."
        ),
    ] = None
    cost: Annotated[
        str | None,
        Option(help="With --min-speedup: macs (default) or layers. With --budget: layers (default) or macs."),
    ] = None
    tolerance: Annotated[
        float | None,
        Option(help="With --guarantee, for numbers, and for --risk score: values this close count as equal."),
    ] = None
    rule: Annotated[
        list[str] | None,
        Option(
            help="Rule to set a threshold for; repeat to choose the best of several. " + DEFAULT_RULES_HELP
        ),
    ] = None
    allow_training_rows: Annotated[
        bool,
        Option(
            "--allow-training-rows",
            help="Accept texts that the model was trained on; --guarantee must also be proven on the others.",
        ),
    ] = False

    def target(self) -> "Target":
        from offramp.measuring import Budget, Guarantee, MaxLoss, MinSpeedup

        if self.guarantee is not None:
            bounds = parse_bounds(self.guarantee)
            return Guarantee(bounds, self.delta, self.risk or "changed", self.tolerance, by=self.by or "")
        if self.max_loss is not None:
            return MaxLoss(self.max_loss)
        if self.min_speedup is not None:
            return MinSpeedup(self.min_speedup, self.cost or "macs")
        return Budget(float(self.budget or 0), self.cost or "layers")

    @property
    def category(self) -> str | None:
        return category_column(self.by)

    @property
    def point(self) -> "OperatingPoint | None":
        from offramp.guarantees.operating_point import OperatingPoint

        return None if self.decide is None else OperatingPoint.parse(self.decide)

    def names(self) -> list[str]:
        """The targets that are set."""
        return [name for name in TARGETS if getattr(self, name) is not None]

    def to_json(self) -> dict[str, Any] | None:
        """The target and its options by name; None for a policy."""
        if self.policy is not None:
            return None
        named = {name: getattr(self, name) for name in [*self.names(), "risk", "by", "cost"]}
        return {name: value for name, value in named.items() if value is not None}

    def check(self) -> None:
        if len(self.names()) != 1:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in TARGETS)
            raise BadOption(f"expected exactly one of {flags}; got {len(self.names())}.")


def parse_bounds(text: str) -> float | dict[str, float]:
    """One bound, or one per risk or class.

    >>> parse_bounds("0.02"), parse_bounds("spam=0.01,ham=0.02")
    (0.02, {'spam': 0.01, 'ham': 0.02})
    """
    if text.endswith(FILES_OF_BOUNDS):
        return read_bounds(text)
    try:
        parts = [part.rpartition("=") for part in text.split(",")]
        numbers = {label: float(value) for label, _, value in parts}
    except ValueError:
        raise BadOption(
            f"--guarantee {text}: expected a number such as 0.02, RISK=0.02,... or CLASS=0.02,..., or a json or yaml "
            "file with a bound for each class, whose names may then have commas."
        ) from None
    if len(numbers) < len(parts):
        raise BadOption(f"--guarantee {text} names a risk or class twice; leave one out.")
    return numbers[""] if list(numbers) == [""] else numbers


def read_bounds(file: str) -> dict[str, float]:
    """The bounds in a json or yaml file, by risk or class."""
    try:
        # everything as text: "yes" is a name, not true
        lines = yaml.compose(Path(file).read_text(encoding="utf-8"), Loader=yaml.BaseLoader).value
        bounds = {label.value: float(bound.value) for label, bound in lines}
    except OSError as error:
        raise BadOption(f"--guarantee {file}: {error.strerror}; name a json or yaml file.") from None
    except (AttributeError, TypeError, ValueError, yaml.YAMLError):
        raise BadOption(
            f"--guarantee {file} does not contain a bound for each risk or class, such as spam: 0.01 on a line."
        ) from None
    if len(bounds) < len(lines):
        raise BadOption(f"--guarantee {file} names a risk or class twice; leave one out.")
    return bounds


def choose_policy(
    info: "ModelInfo",
    trace: Any,
    target: TargetOptions,
    rules: list[str] | None,
    chosen_on: str | None = None,
) -> tuple["Policy", Any, "Calibration | None"]:
    """The policy that was named, or one that reaches the target on the trace; the examples to measure it on, if there
    are any; and how it was found."""
    from offramp.measuring import Guarantee, calibrate

    if (point := target.point) is not None:
        info = replace(info, decide=point)
        trace = trace and replace(trace, decide=str(point))
    if target.policy is not None:
        return info.check_policy(target.policy), trace, None
    aim = target.target()
    with paid_attempt(trace, rules, aim) if isinstance(aim, Guarantee) else nullcontext(0.0) as spent:
        search = calibrate(
            trace,
            rules or None,
            aim,
            chosen_on=chosen_on,
            spent=spent,
            allow_training_rows=target.allow_training_rows,
        )
    return search.policy, search.trace, search


def paid_attempt(
    trace: "Trace", rules: list[str] | None, target: "Guarantee"
) -> AbstractContextManager[float]:
    """An attempt on these texts with this reference; the value is the delta of earlier ones."""
    from offramp.guarantees.attempts import Attempt, subject_of

    subject = subject_of(trace.keys(), trace.reference_name or trace.fingerprint)
    settings = {
        "rules": rules or None,
        "guarantee": asdict(target),
        "decide": trace.decide,
        "precision": trace.precision,
    }
    attempt = Attempt(subject, settings, target.delta)
    for line in attempt.describe():
        log(line)
    return attempt.paid()


def search_facts(search: "Calibration | None") -> dict[str, Any]:
    """How a policy was found, for JSON."""
    if search is None:
        return {"rules": [], "split": None, "static_cut": None}
    split = {"fitted_on": search.fitted_on, "calibrated_on": search.calibrated_on}
    cut = search.static_cut
    return {
        "rules": list(search.rules),
        "split": {"rules": list(search.fitted), **split} if search.fitted else None,
        "static_cut": cut and {"policy": str(cut.policy), "mean_layer": cut.mean_layer},
    }


def search_lines(search: "Calibration | None") -> list[str]:
    """How a policy was found, for people."""
    if search is None:
        return []
    lines, proof, cut = [], search.policy.certificate, search.static_cut
    if len(search.rules) > 1:
        paid = f"; the certificate allows for the choice of {len(search.rules)}" if proof else ""
        lines.append(f"rules tried: {', '.join(search.rules)}{paid}")
    if search.fitted:
        lines.append(
            f"{', '.join(search.fitted)}: fitted on {search.fitted_on} examples of the trace, threshold set on the "
            f"other {search.calibrated_on}"
        )
    if proof is not None and proof.unseen is not None:
        lines.append(
            f"texts repeat or were trained on: the bound is also proven on the {proof.unseen} distinct unseen texts, "
            f"whose risk is {proof.unseen_risk:.4g}"
        )
    if cut is not None:
        layer = int(cut.policy.threshold)  # type: ignore[arg-type]
        smaller = f", or a smaller model (offramp train --layers {layer})" if layer else ""
        lines.append(
            f"stopping every text at layer {layer} does just as well; consider --rule layer{smaller}"
        )
    return lines
