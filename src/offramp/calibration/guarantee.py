"""Learn then Test: the laxest threshold whose risk is proven to be low.

*Reference*: Angelopoulos et al. 2021, arXiv:2110.01052; for early exits Schuster et al. 2021, arXiv:2104.08803.

Thresholds are tested from the safest down, each at the full level delta, and testing stops at the first that
fails: to certify a risky threshold, the first risky one in the sequence must have passed by bad luck, which has
probability delta at most. This needs a sequence that was fixed before the data were seen: `ladder`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.bounds import binomial, examples_needed, hoeffding_bentkus
from offramp.calibration.targets import Guarantee
from offramp.criteria.base import Criterion
from offramp.curves.leaving import leaving, out_of_reach
from offramp.curves.scoring import answers_of
from offramp.errors import BadTarget, NoSafeThreshold
from offramp.policy import Policy, fold
from offramp.trace import Trace

Array: TypeAlias = NDArray[Any]

RUNGS = 400
SUREST = 25.0
"""The lead of a logit at the safest end of the ladder: a probability of 1 - 1e-11."""


def certify(trace: Trace, policies: Sequence[Policy], target: Guarantee, chosen_on: str | None) -> Policy:
    """The policy that leaves earliest among those proven, with its certificate; or `NoSafeThreshold`."""
    outcomes = [prove(trace, policy, target, target.delta / len(policies)) for policy in policies]
    proven = [outcome for outcome in outcomes if outcome.proven]
    if not proven:
        raise refusal(trace, target, outcomes)
    best = min(proven, key=lambda outcome: outcome.mean_layer)
    return replace(best.policy, certificate=certificate(trace, target, best, len(policies), chosen_on))


@dataclass(frozen=True)
class Outcome:
    """What testing one rule came to."""

    proven: bool
    policy: Policy
    """The laxest that was proven; or else the safest that lets anyone leave early, and failed."""
    risk: float
    """Observed, of this policy."""
    mean_layer: float
    bound: str
    epsilon: float
    delta: float


def prove(trace: Trace, policy: Policy, target: Guarantee, delta: float) -> Outcome:
    """Test one rule: along one sequence, or along one for each class that has a bound."""
    folded = fold(
        policy.criterion, policy.tempered(trace.logits), trace.gates, trace.layers, trace.problem_type
    )
    answers = answers_of(folded.answers, trace.problem_type)
    losses = losses_of(trace, target, answers)
    if not isinstance(target.epsilon, Mapping):
        return walk(trace, policy, folded.readiness, losses, target.of, target.epsilon, delta)
    return prove_classes(trace, policy, folded.readiness, answers, losses, target, delta)


def walk(
    trace: Trace, policy: Policy, readiness: Array, losses: Array, of: str, epsilon: float, delta: float
) -> Outcome:
    """Fixed-sequence testing along the ladder."""
    left = leaving(policy, readiness, trace.layers, ladder(policy.criterion, trace))
    risks = left.total(lambda exit: losses[exit]) / len(trace)
    mean_layers = left.histogram() @ np.asarray(trace.layers) / len(trace)
    fractional = of == "accuracy" and trace.problem_type == "multi_label_classification"
    p_values = (hoeffding_bentkus if fractional else binomial)(risks, len(trace), epsilon)
    safest_first = np.arange(len(risks))[::-1]
    passed = int(np.logical_and.accumulate(p_values[safest_first] <= delta).sum())
    useful = [index for index in safest_first if mean_layers[index] < trace.layers[-1]]
    proven = [index for index in safest_first[:passed] if mean_layers[index] < trace.layers[-1]]
    index = proven[-1] if proven else useful[0] if useful else safest_first[0]
    return Outcome(
        proven=bool(proven),
        policy=replace(policy, threshold=float(left.thresholds[index])),
        risk=float(risks[index]),
        mean_layer=float(mean_layers[index]),
        bound="Hoeffding-Bentkus" if fractional else "exact binomial",
        epsilon=epsilon,
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
    if trace.problem_type == "multi_label_classification":
        logits[:] = lead[..., None]  # the least sure label decides
    else:
        logits[..., 0] = lead
    return np.asarray(
        criterion.sign * fold(criterion, logits, problem_type=trace.problem_type).readiness[:, 0]
    )


def losses_of(trace: Trace, target: Guarantee, answers: Array) -> Array:
    """(exits, examples) in [0, 1]: what it costs to answer at each exit instead of at full depth."""
    full = answers_of(trace.logits[:, -1:], trace.problem_type)
    if trace.problem_type == "regression" and target.tolerance is None:
        raise BadTarget("two numbers are never quite the same: give Guarantee a tolerance for regression")

    def same(some: Array, others: Any) -> Array:
        if trace.problem_type != "regression":
            return np.asarray(some == others)
        return np.asarray(np.abs(some - others) <= target.tolerance)

    if target.of == "disagreement":
        agree = same(answers, full)
        return np.asarray(~(agree.all(-1) if agree.ndim == 3 else agree), np.float64)
    if trace.labels is None:
        raise BadTarget('accuracy needs labels and the trace has none; take of="disagreement"')
    spoiled = same(full, trace.labels) & ~same(answers, trace.labels)
    return np.asarray(spoiled.mean(-1) if spoiled.ndim == 3 else spoiled, np.float64)


def prove_classes(
    trace: Trace,
    policy: Policy,
    readiness: Array,
    answers: Array,
    losses: Array,
    target: Guarantee,
    delta: float,
) -> Outcome:
    """A threshold for each class that has a bound; with other classes nobody leaves early.

    An example that leaves early does so with one class, exactly as if only this class could leave. So the losses
    of the classes add up to no less than the loss of all together, and so do their bounds.
    """
    bounds = {class_index(trace, name): epsilon for name, epsilon in dict(target.epsilon).items()}  # type: ignore[arg-type]
    outcomes = {
        index: walk(
            trace,
            policy,
            np.where(index == answers.T, readiness, -np.inf),
            losses,
            target.of,
            epsilon,
            delta / len(bounds),
        )
        for index, epsilon in bounds.items()
    }
    found = {
        str(index): float(outcome.policy.threshold)  # type: ignore[arg-type]
        for index, outcome in outcomes.items()
        if outcome.proven
    }
    if not found:
        return min(outcomes.values(), key=lambda outcome: outcome.risk - outcome.epsilon)
    together = replace(policy, threshold=out_of_reach(policy.criterion), class_thresholds=found)
    exits = together.exits(trace.logits, trace.gates, trace.layers, trace.problem_type)
    return Outcome(
        proven=True,
        policy=together,
        risk=float(losses[exits, np.arange(len(trace))].mean()),
        mean_layer=float(np.asarray(trace.layers)[exits].mean()),
        bound=next(iter(outcomes.values())).bound,
        epsilon=sum(bounds.values()),
        delta=delta,
    )


def class_index(trace: Trace, name: str) -> int:
    if trace.problem_type != "single_label_classification":
        raise BadTarget(f"a bound for the class {name!r} needs a problem with one label for each example")
    names = trace.label_names or tuple(map(str, range(trace.logits.shape[-1])))
    if name not in names:
        raise BadTarget(f"there is no class {name!r}; there are {', '.join(names)}")
    return names.index(name)


def refusal(trace: Trace, target: Guarantee, outcomes: Sequence[Outcome]) -> NoSafeThreshold:
    """Why nothing was proven, and how many examples would have been enough."""
    leaving_early = [outcome for outcome in outcomes if outcome.mean_layer < trace.layers[-1]]
    if not leaving_early:
        return NoSafeThreshold("no threshold lets anyone leave early on this trace; take another rule.")
    nearest = min(leaving_early, key=lambda outcome: outcome.risk)
    epsilon, delta, examples = nearest.epsilon, nearest.delta, len(trace)
    without_errors = examples_needed(epsilon, delta)
    needed = examples_needed(epsilon, delta, nearest.risk)
    wanted = f"{target.of} of at most {epsilon:g} with confidence {1 - delta:g}"
    if without_errors is not None and examples < without_errors:
        return NoSafeThreshold(
            f"{examples} examples cannot prove {wanted}: even without a single error it takes {without_errors}. "
            "Calibrate on more examples, or ask for less.",
            needed,
        )
    seen = f"the safest threshold at which anyone leaves early has an observed risk of {nearest.risk:.4f}"
    if needed is None:
        return NoSafeThreshold(
            f"no threshold can be proven to have {wanted}: {seen}, which is no less. More examples do not help; "
            "allow a larger epsilon, take another rule, or train the exits further."
        )
    return NoSafeThreshold(
        f"no threshold can be proven to have {wanted} on {examples} examples: {seen}. "
        f"If that is the true risk, about {needed} examples are needed.",
        needed,
    )


def certificate(
    trace: Trace, target: Guarantee, outcome: Outcome, rules_tried: int, chosen_on: str | None
) -> dict[str, Any]:
    """What was proven, of what, from what."""
    loss = {
        "disagreement": "get an answer that is not that of full depth",
        "accuracy": "lose a right answer of full depth by leaving early",
    }[target.of]
    within = "" if target.tolerance is None else f" (within {target.tolerance:g} is the same)"
    return {
        "promise": f"With probability at least {1 - target.delta:g} over the choice of the calibration examples, "
        f"at most a share of {outcome.epsilon:g} of examples drawn like them {loss}{within}.",
        "of": target.of,
        "epsilon": dict(target.epsilon) if isinstance(target.epsilon, Mapping) else target.epsilon,
        "delta": target.delta,
        "tolerance": target.tolerance,
        "bound": outcome.bound,
        "examples": len(trace),
        "observed_risk": outcome.risk,
        "mean_layer": outcome.mean_layer,
        "data": trace.data,
        "fingerprint": trace.fingerprint,
        "runtime": trace.runtime,
        "precision": trace.precision,
        "rules_tried": rules_tried,
        "rule_chosen_on": chosen_on,
    }
