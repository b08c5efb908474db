"""The policy of a retrofit: one for each precision that has a safe one, of which the fastest is chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offramp.errors import NoSafeThreshold
from offramp.measuring import Guarantee
from offramp.measuring.calibrate import calibrate
from offramp.measuring.speed import Speed
from offramp.measuring.targets import Candidate
from offramp.policy import Policy
from offramp.reports.results import FULL_DEPTH
from offramp.retrofits.arguments import Arguments
from offramp.retrofits.exits import Exits, Variant
from offramp.retrofits.timing import predictor, time_on

EXITS = "exits"
AS_FAST = 1.05
"""A simpler policy is kept if it costs at most this many times what the fastest one costs."""
CHOICE_SECONDS = 8
"""The most time that is spent on timing."""


@dataclass(frozen=True)
class Calibrated:
    """A variant with a policy that is proven for it."""

    variant: Variant
    candidate: Candidate

    @property
    def policy(self) -> Policy:
        return self.candidate.policy

    @property
    def fixed_layer(self) -> int | None:
        """The layer at which all texts stop, if the policy is such a layer."""
        return int(self.candidate.mean_layer) if self.policy.rule.reads == "layer" else None

    @property
    def kind(self) -> str:
        """How it differs from others of this variant."""
        if self.fixed_layer is None:
            return EXITS
        full_depth = self.fixed_layer == self.variant.trace.layers[-1]
        return FULL_DEPTH if full_depth else f"layer {self.fixed_layer}"

    @property
    def name(self) -> str:
        return f"{self.variant.precision}, {self.kind}"


@dataclass(frozen=True)
class Choice:
    chosen: Calibrated
    reason: str
    """Why, in words."""
    rungs: list[Policy]
    """The looser policies of the ladder, for the chosen variant."""
    full_depths: list[str]
    """The precisions whose full depth is proven to keep the guarantee too."""


def choose(exits: Exits, variants: Sequence[Variant], spent: float) -> Choice:
    """The fastest policy under the guarantee; `spent` is the delta of earlier attempts."""
    exits.args.log("calibrating")
    calibrated = calibrate_variants(exits, variants, spent)
    chosen, reason = choose_by_time(exits.args, calibrated, len(variants))
    looser = [calibrate_variant(exits, chosen.variant, rung, spent) for rung in exits.args.rungs]
    full_depths = [option.variant.precision for option in calibrated if option.kind == FULL_DEPTH]
    return Choice(chosen, reason, [best.policy for best, *_ in looser], full_depths)


def calibrate_variants(exits: Exits, variants: Sequence[Variant], spent: float) -> list[Calibrated]:
    """The policies of each variant that has a safe one."""
    calibrated: list[Calibrated] = []
    refusals = {}
    for variant in variants:
        try:
            calibrated += calibrate_variant(exits, variant, exits.args.target, spent)
        except NoSafeThreshold as refusal:
            refusals[variant.precision] = refusal
    if not calibrated:
        raise next(iter(refusals.values()))
    for precision, reason in refusals.items():
        exits.args.log(f"{precision}: {reason}")
    return calibrated


def calibrate_variant(exits: Exits, variant: Variant, target: Guarantee, spent: float) -> list[Calibrated]:
    """The best policy, and its rivals under the same guarantee: a fixed layer, and full depth."""
    calibration = calibrate(
        variant.trace,
        exits.args.rules,
        target,
        fit_on=exits.trace(variant.folder, variant.precision, "fit"),
        choices=exits.args.choices,
        spent=spent,
        allow_training_rows=True,  # as often as texts to come repeat them: the split is random
    )
    best, *others = (Calibrated(variant, candidate) for candidate in calibration.reached)
    return [best, *(option for option in others if option.fixed_layer is not None)]


def choose_by_time(args: Arguments, calibrated: Sequence[Calibrated], tried: int) -> tuple[Calibrated, str]:
    """The fastest on calibration texts, and the reason in words; a fixed layer if that is as fast."""
    alone = f"the only precision {'tried' if tried == 1 else 'with a safe policy'}"
    if len(calibrated) == 1:
        return calibrated[0], alone
    args.log(f"timing {'; '.join(option.name for option in calibrated)}, for at most {CHOICE_SECONDS} s")
    contenders = {option.name: predictor(args, option.variant.folder, option.policy) for option in calibrated}
    speeds = time_on(args, args.split.calibration, contenders, CHOICE_SECONDS)
    chosen, rival = fastest(calibrated, speeds)
    if rival is None:
        return chosen, alone
    times = speeds[chosen.name].times_faster_than(speeds[rival.name])
    same_kind = chosen.kind == rival.kind
    what, than = (
        option.variant.precision if same_kind else f"{option.kind} in {option.variant.precision}"
        for option in (chosen, rival)
    )
    return chosen, (
        f"{what} is {times.single:.2f} times as fast as {than} for one {args.split.unit} and {times.batch:.2f} times "
        "in batches, under the same guarantee"
    )


def fastest(
    calibrated: Sequence[Calibrated], speeds: Mapping[str, Speed]
) -> tuple[Calibrated, Calibrated | None]:
    """The fastest, and its fastest rival of another kind; of those that are as fast, full depth or a fixed layer."""

    def cost(option: Calibrated) -> float:
        return speeds[option.name].cost

    least = min(map(cost, calibrated))
    as_fast = [option for option in calibrated if cost(option) <= AS_FAST * least]
    chosen = max(
        as_fast, key=lambda option: (-1 if option.fixed_layer is None else option.fixed_layer, -cost(option))
    )
    fixed, precision = chosen.fixed_layer is not None, chosen.variant.precision
    rivals = [option for option in calibrated if option.fixed_layer is None] if fixed else []
    rivals = rivals or [option for option in calibrated if option.variant.precision != precision]
    return chosen, min(rivals, key=cost, default=None)
