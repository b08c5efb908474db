"""Learn then Test: the laxest threshold whose risk is proven to be low.

*Reference*: Angelopoulos et al. 2021, arXiv:2110.01052; for early exits Schuster et al. 2021, arXiv:2104.08803.

Thresholds are tested from the safest down, each at the full level delta, and testing stops at the first that
fails: to certify a risky threshold, the first risky one in the sequence must have passed by bad luck, which has
probability delta at most. This needs a sequence that was fixed before the data were seen: `ladder`.

With bounds by class a threshold passes if it passes for every class. A threshold that is risky for some class
must then have passed for that class too, so each class is tested at the full level delta as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.bounds import Bound, binomial, examples_needed, hoeffding_bentkus
from offramp.calibration.targets import Guarantee
from offramp.criteria.base import Criterion
from offramp.curves.exit_table import ExitTable, build_exit_table
from offramp.curves.scores import apply_rule, full_depth_predictions
from offramp.errors import BadOption, NoSafeThreshold
from offramp.policy import Policy, fold
from offramp.policy.text import class_indices
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]

RUNGS = 400
SUREST = 25.0
"""The lead of a logit at the safest end of the ladder: a probability of 1 - 1e-11."""


def certify(
    trace: Trace, policies: Sequence[Policy], target: Guarantee, origin: dict[str, str | None]
) -> Policy:
    """The policy that leaves earliest among those proven, with its certificate; or `NoSafeThreshold`."""
    check_fit(trace, target)
    outcomes = [prove(trace, policy, target, target.delta / len(policies)) for policy in policies]
    proven = [outcome for outcome in outcomes if outcome.proven]
    if not proven:
        raise refusal(trace, target, outcomes)
    best = min(proven, key=lambda outcome: outcome.mean_layer)
    return replace(best.policy, certificate=certificate(trace, target, best, len(policies)) | origin)


def check_fit(trace: Trace, target: Guarantee) -> None:
    regression = trace.problem_type == REGRESSION
    if regression and target.tolerance is None:
        raise BadOption("two numbers are never quite the same: give Guarantee a tolerance for regression")
    if not regression and target.tolerance is not None:
        raise BadOption("a tolerance is for regression, and two classes are the same or not; leave it out")
    if target.of == "accuracy" and trace.labels is None:
        raise BadOption('accuracy needs labels and the trace has none; take of="disagreement"')


@dataclass(frozen=True)
class Part:
    """Examples that have a bound of their own: all of them, or those of one class."""

    of_class: str | None
    rows: Array
    """(examples,) which they are."""
    epsilon: float

    @property
    def examples(self) -> int:
        return int(self.rows.sum())


@dataclass(frozen=True)
class Tested:
    """One part at one threshold."""

    part: Part
    risk: float
    p_value: float


@dataclass(frozen=True)
class Outcome:
    """What testing one rule came to."""

    proven: bool
    policy: Policy
    """The laxest that was proven; or else the safest that lets anyone leave early, and failed."""
    tested: tuple[Tested, ...]
    """Each part, at this policy."""
    exits: tuple[float, ...]
    """The share of examples that leaves at each exit."""
    mean_layer: float
    delta: float

    @property
    def weakest(self) -> Tested:
        return max(self.tested, key=lambda each: each.p_value)


def prove(trace: Trace, policy: Policy, target: Guarantee, delta: float) -> Outcome:
    """Fixed-sequence testing of one rule along the ladder."""
    read = apply_rule(trace, policy)
    left = build_exit_table(policy, read.readiness, trace.layers, ladder(policy.criterion, trace))
    losses, most = losses_of(trace, target, read.predictions), most_lost(trace, target)
    _, bound = bound_for(trace, target)
    parts = parts_of(trace, target)
    risks = [risks_of(part, left, losses) / most for part in parts]
    p_values = [bound(risk, part.examples, part.epsilon) for part, risk in zip(parts, risks, strict=True)]
    exits = left.histogram()
    mean_layers = exits @ np.asarray(trace.layers) / len(trace)

    safest_first = np.arange(len(mean_layers))[::-1]
    passes = np.max(p_values, axis=0) <= delta
    passed = int(np.logical_and.accumulate(passes[safest_first]).sum())
    useful = [index for index in safest_first if mean_layers[index] < trace.layers[-1]]
    proven = [index for index in safest_first[:passed] if mean_layers[index] < trace.layers[-1]]
    index = proven[-1] if proven else useful[0] if useful else safest_first[0]
    return Outcome(
        proven=bool(proven),
        policy=replace(policy, threshold=float(left.thresholds[index])),
        tested=tuple(
            Tested(part, float(risk[index]), float(p_value[index]))
            for part, risk, p_value in zip(parts, risks, p_values, strict=True)
        ),
        exits=tuple((exits[index] / len(trace)).tolist()),
        mean_layer=float(mean_layers[index]),
        delta=delta,
    )


def ladder(criterion: Criterion, trace: Trace) -> Array:
    """Thresholds in the rule's units, from lax to safe, that depend on the model's shape and not on its answers.

    A rule that counts has few. For others, answers that are surer and surer (a logit in the lead by 0 to 25) show
    which readiness the rule knows.
    """
    _, exits, classes = trace.logits.shape
    if criterion.reads == "layer":
        return np.asarray(trace.layers)
    if not criterion.strict:
        return np.arange(1, exits + 1)
    if criterion.reads == "gate":
        return np.linspace(0, 1, RUNGS)
    logits = np.zeros((RUNGS, 1, classes))
    lead = np.linspace(0, SUREST, RUNGS)[:, None]
    if trace.problem_type == MULTI_LABEL:
        logits[:] = lead[..., None]  # the least sure label decides
    else:
        logits[..., 0] = lead
    return np.asarray(
        criterion.sign * fold(criterion, logits, problem_type=trace.problem_type).readiness[:, 0]
    )


def risks_of(part: Part, left: ExitTable, losses: Array) -> Array:
    """(thresholds,) the mean loss of a part."""
    return left.total(lambda exit: losses[exit] * part.rows) / max(part.examples, 1)


def losses_of(trace: Trace, target: Guarantee, answers: Array) -> Array:
    """(exits, examples) 0 to `most_lost`: what it costs to answer at each exit instead of at full depth.

    Whole numbers: sums of shares would land a hair beside what they should be.
    """
    full = full_depth_predictions(trace)

    def same(some: Array, others: Any) -> Array:
        if trace.problem_type != REGRESSION:
            return np.asarray(some == others)
        return np.asarray(np.abs(some - others) <= target.tolerance)

    if target.of == "disagreement":
        differ = ~same(answers, full)
        return np.asarray(differ.any(-1) if differ.ndim == 3 else differ, np.int64)
    spoiled = same(full, trace.labels) & ~same(answers, trace.labels)
    return np.asarray(spoiled.sum(-1) if spoiled.ndim == 3 else spoiled, np.int64)


def most_lost(trace: Trace, target: Guarantee) -> int:
    """The most that one example can lose: its answer, or of many labels the right ones."""
    each_label = target.of == "accuracy" and trace.problem_type == MULTI_LABEL
    return trace.logits.shape[-1] if each_label else 1


def bound_for(trace: Trace, target: Guarantee) -> tuple[str, Bound]:
    """By the kind of loss, whatever the losses happen to be."""
    if most_lost(trace, target) == 1:
        return "exact binomial", binomial
    return "Hoeffding-Bentkus", hoeffding_bentkus


def parts_of(trace: Trace, target: Guarantee) -> list[Part]:
    """What is tested by itself: the whole, or what full depth answers (for accuracy: the label) by class."""
    if not isinstance(target.epsilon, Mapping):
        return [Part(None, np.ones(len(trace), bool), target.epsilon)]
    if trace.problem_type != SINGLE_LABEL:
        raise BadOption("bounds by class need a problem with one label for each example; give one for all")
    names = trace.label_names or tuple(map(str, range(trace.logits.shape[-1])))
    classes = class_indices(target.epsilon, names)
    unbounded = [name for index, name in enumerate(names) if index not in classes]
    if unbounded:
        raise BadOption(
            f"there is no bound for {', '.join(unbounded)}: anything could be lost there; give one"
        )
    of = full_depth_predictions(trace) if target.of == "disagreement" else trace.labels
    return [
        Part(names[index], np.asarray(of == index), epsilon)
        for index, epsilon in zip(classes, target.epsilon.values(), strict=True)
    ]


def refusal(trace: Trace, target: Guarantee, outcomes: Sequence[Outcome]) -> NoSafeThreshold:
    """Why nothing was proven, and how many examples would have been enough."""
    leaving_early = [outcome for outcome in outcomes if outcome.mean_layer < trace.layers[-1]]
    if not leaving_early:
        return NoSafeThreshold("no threshold lets anyone leave early on this trace; take another rule.")
    nearest = min(leaving_early, key=lambda outcome: outcome.weakest.p_value)
    part, risk, delta = nearest.weakest.part, nearest.weakest.risk, nearest.delta
    _, bound = bound_for(trace, target)
    without_errors = examples_needed(part.epsilon, delta, bound=bound)
    needed = examples_needed(part.epsilon, delta, risk, bound)
    kind = "examples" if part.of_class is None else f"examples of the class {part.of_class!r}"
    wanted = f"{target.of} of at most {part.epsilon:g} with confidence {1 - delta:g}"
    if without_errors is None or part.examples < without_errors:
        least = "more than a billion" if without_errors is None else str(without_errors)
        return NoSafeThreshold(
            f"{part.examples} {kind} cannot prove {wanted}: even without a single error it takes {least}. "
            "Calibrate on more examples, or ask for less.",
            needed or without_errors,
            part.of_class,
        )
    seen = f"the safest threshold at which anyone leaves early has an observed risk of {risk:.4f}"
    if needed is None:
        return NoSafeThreshold(
            f"no threshold can be proven to have {wanted} on {part.examples} {kind}: {seen}. More examples do not "
            "help; allow a larger epsilon, take another rule, or train the exits further.",
            of_class=part.of_class,
        )
    return NoSafeThreshold(
        f"no threshold can be proven to have {wanted} on {part.examples} {kind}: {seen}. "
        f"If that is the true risk, about {needed} are needed.",
        needed,
        part.of_class,
    )


def certificate(trace: Trace, target: Guarantee, outcome: Outcome, rules_tried: int) -> dict[str, Any]:
    """What was proven, of what, from what."""
    lost = sum(each.risk * each.part.examples for each in outcome.tested)
    by_class = {
        each.part.of_class: {"examples": each.part.examples, "observed_risk": each.risk}
        for each in outcome.tested
        if each.part.of_class is not None
    }
    return {
        "promise": promise(target, outcome),
        "policy": str(outcome.policy),
        "of": target.of,
        "epsilon": dict(target.epsilon) if isinstance(target.epsilon, Mapping) else target.epsilon,
        "delta": target.delta,
        "tolerance": target.tolerance,
        "bound": bound_for(trace, target)[0],
        "examples": len(trace),
        "observed_risk": lost / len(trace),
        "by_class": by_class or None,
        "mean_layer": outcome.mean_layer,
        "exits": list(outcome.exits),
        "data": trace.data,
        "fingerprint": trace.fingerprint,
        "runtime": trace.runtime,
        "precision": trace.precision,
        "rules_tried": rules_tried,
    }


def promise(target: Guarantee, outcome: Outcome) -> str:
    """In words, with every condition."""
    loss, belongs = {
        "disagreement": ("get an answer that is not that of full depth", "to which full depth answers"),
        "accuracy": ("lose a right answer of full depth by leaving early", "whose label is"),
    }[target.of]
    shares = [
        f"a share of {part.epsilon:g} of "
        + ("examples" if part.of_class is None else f"those {belongs} {part.of_class!r}")
        for part in (each.part for each in outcome.tested)
    ]
    within = "" if target.tolerance is None else f" (within {target.tolerance:g} is the same)"
    return (
        f"With probability at least {1 - target.delta:g} over the choice of the calibration examples, for examples "
        f"drawn like them: at most {' and '.join(shares)} {loss}{within}."
    )
