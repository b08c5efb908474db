"""Guarantee: a bound on a risk that is asked for. Certificate: one that was proven, and for what."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar

from offramp.errors import BadOption, BadPolicy, CertificateMismatch
from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.losses import LOSSES, Loss
from offramp.wording import count

NOT_FIELDS = "promise", "seal"
"""What the JSON form has besides the fields: a sentence for people, and a hash of the policy."""
ARGMAX = "the most likely class"
"""The operating point that has no text."""
Certified = TypeVar("Certified", bound=Any)


@dataclass(frozen=True)
class Guarantee:
    """A risk of at most epsilon, with probability at least 1 - delta.

    The probability is over the draw of the calibration examples. The risk is the mean of a loss over examples from
    the same distribution.
    """

    epsilon: float | Mapping[str, float]
    """One bound for all examples; or one per class name, each of which then holds within that class: the examples
    that the reference predicts as it, or for "accuracy" those labelled with it. This protects rare classes, and each
    class needs enough calibration examples."""
    delta: float = 0.05
    risk: str = "changed"
    """A loss of `LOSSES`: "changed", the prediction differs from the reference (no labels needed); "accuracy", a
    correct prediction is lost, so accuracy drops by at most epsilon; "accuracy_drop", the same net of correct
    predictions that are gained, which allows earlier exits. For rankings: "overlap", the share of the
    reference's top k that is missed; "ndcg", 1 - nDCG@k, where the reference's top k have the gains k, ..., 1."""
    tolerance: float | None = None
    """In regression: numbers no further apart than this count as equal."""
    top_k: int | None = None
    """For rankings: how many documents count, by default 10."""

    def __post_init__(self) -> None:
        require(are_fractions(self.epsilon), f"epsilon={self.epsilon}: expected a fraction between 0 and 1")
        require(0 < self.delta < 1, f"delta={self.delta}: expected a probability between 0 and 1")
        require(self.risk in LOSSES, f"risk={self.risk!r}: choose one of {', '.join(LOSSES)}")
        near = self.tolerance is None or 0 <= self.tolerance < float("inf")
        require(near, f"tolerance={self.tolerance}: expected a distance of 0 or more")
        if self.loss.unit == "query":
            object.__setattr__(self, "top_k", 10 if self.top_k is None else self.top_k)
        else:
            require(self.top_k is None, "top_k is for rankings only; leave it out")
        require(self.top_k is None or self.top_k >= 1, f"top_k={self.top_k}: expected 1 or more")

    @property
    def loss(self) -> Loss:
        return LOSSES[self.risk]


def require(holds: bool, message: str) -> None:
    if not holds:
        raise BadOption(message)


def are_fractions(epsilon: float | Mapping[str, float]) -> bool:
    bounds = epsilon.values() if isinstance(epsilon, Mapping) else [epsilon]
    return bool(bounds) and all(0 < bound < 1 for bound in bounds)


@dataclass(frozen=True)
class Conditions:
    """The model and policy that a certificate was issued for."""

    policy: str
    """Its text form."""
    mean_layer: float
    exits: tuple[float, ...] = ()
    """The fraction of calibration examples that took each exit."""
    fingerprint: str = ""
    weights: str = ""
    """A hash of the graphs and weights of the exported folder that it is stored in."""
    runtime: str = ""
    precision: str = ""
    max_length: int | None = None
    """The number of tokens at which the calibration texts were truncated; None if unknown."""
    rule_chosen_on: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "exits", tuple(map(float, self.exits)))


@dataclass(frozen=True)
class Certificate:
    """A proven bound on a risk, with the evidence for it. Part of a policy's JSON form."""

    risk: str
    """The loss whose mean is bounded, of `LOSSES`."""
    epsilon: float | Mapping[str, float]
    """The bound on the risk, for all examples or by class."""
    delta: float
    """The probability, over the draw of the calibration examples, that the bound is wrong."""
    bound: str
    """The name of the statistical bound."""
    examples: int
    """The number of calibration examples."""
    observed_risk: float
    """The risk on the calibration examples."""
    unseen: int | None = None
    """If texts repeat: the number of distinct calibration texts that were not learned from."""
    unseen_risk: float | None = None
    """The risk on those, each counted once; the same bound was proven for it."""
    reference: str = ""
    """The model whose predictions are kept; empty: the same model at full depth."""
    data: str = ""
    tolerance: float | None = None
    """In regression: numbers no further apart than this count as equal."""
    top_k: int | None = None
    """For rankings: how many documents count."""
    decision: str = ""
    """The operating point, such as "spam>=0.3"; empty: the most likely class."""
    population: int | None = None
    """If the claim is about the rows of the data alone: how many there are, of which `examples` were examined."""
    by_class: Mapping[str, Mapping[str, float]] | None = None
    """With bounds by class: examples and observed risk of each."""
    rules_tried: int = 1
    """The number of rules (times precisions and rungs of a ladder, where there were several) that shared delta."""
    fitted_on: int = 0
    """For a rule that learns: the number of further examples of the same data that it was fitted on."""
    conditions: Conditions | None = None
    """None if the claim is about predictions alone."""

    def __post_init__(self) -> None:
        if self.risk not in LOSSES or not are_fractions(self.epsilon) or not 0 < self.delta < 1:
            raise BadPolicy(
                f"a certificate needs a risk, epsilon and delta, not {self.risk!r}, {self.epsilon}."
            )
        if self.examples < 1 or not BOUNDS[self.loss.bound].lowest <= self.observed_risk <= 1:
            raise BadPolicy(
                f"a certificate needs examples and their risk, not {self.examples} and {self.observed_risk}."
            )

    @property
    def loss(self) -> Loss:
        return LOSSES[self.risk]

    @property
    def summary(self) -> str:
        """One sentence for people.

        >>> proof = Certificate("changed", 0.03, 0.05, "exact binomial", 800, 0.02, data="a.csv")
        >>> proof.summary
        'With 95% confidence, at most 3% of predictions differ from full depth (on data like a.csv).'
        >>> replace(proof, risk="ndcg", top_k=10, reference="X").summary[21:]
        "nDCG@10 against X's order drops by at most 3% on average (on data like a.csv)."
        """
        where = f"on data like {self.data or 'the calibration examples'}"
        if self.population is not None:
            where = f"among the {self.population} rows of {self.data}"
        return f"With {percent(1 - self.delta)} confidence, {self.claim} ({where})."

    @property
    def claim(self) -> str:
        """What is bounded, and how.

        >>> Certificate("missed", 0.03, 0.05, "exact binomial", 800, 0.02, reference="X", decision="spam>=0.3").claim
        'at most 3% of examples that X says yes to lose a yes, where the decision is spam>=0.3'
        """
        shares = (percent(bound) + (f" (of {name})" if name else "") for name, bound in self.bounds().items())
        within = "" if self.tolerance is None else self.loss.within
        return self.words(self.loss.summary + within, ", ".join(shares)) + self.decided

    @property
    def promise(self) -> str:
        """The exact statement, with every condition.

        >>> Certificate("accuracy", {"spam": 0.03}, 0.05, "exact binomial", 800, 0.02).promise[-73:]
        "0.03 of examples labelled 'spam' lose a correct prediction of full depth."
        """
        units, scope = self.loss.units, " from the same distribution"
        if self.loss.unit == "query":
            scope = f" with documents{scope}, when the top {self.top_k} is asked for"
        drawn = f"the {units} tested" if self.conditions is None else f"the calibration {units}"
        if self.population is not None:
            drawn, scope = "the rows examined", f" among the {self.population} rows of {self.data}"
        within = "" if self.tolerance is None else f" (numbers within {self.tolerance:g} count as equal)"
        return (
            f"With probability at least {1 - self.delta:g} over the draw of {drawn}, for {units}"
            f"{scope}: {self.words(self.loss.statement, ' and '.join(self.fractions()))}{self.decided}{within}."
            + ("" if self.unseen is None else " The same holds for new texts, each counted once.")
        )

    @property
    def decided(self) -> str:
        return f", where the decision is {self.decision}" if self.decision else ""

    def fractions(self) -> Iterable[str]:
        for name, bound in self.bounds().items():
            if self.loss.bound != "exact binomial":
                yield f"{bound:g}"
            else:
                which = f" {self.words(self.loss.of_class)} {name!r}" if name else ""
                yield f"a fraction {bound:g} of {self.words(self.loss.examples)}{which}"

    def bounds(self) -> Mapping[str, float]:
        """By class; a bound for all has no name."""
        return self.epsilon if isinstance(self.epsilon, Mapping) else {"": self.epsilon}

    def words(self, template: str, bounds: str = "") -> str:
        return template.format(
            bounds=bounds,
            reference=self.reference or "full depth",
            top_k=self.top_k,
            tolerance=self.tolerance,
            predictions="decisions" if self.decision else "predictions",
            a_prediction="a decision" if self.decision else "a prediction",
        )

    @property
    def evidence(self) -> str:
        """The examples behind the bound.

        >>> proof = Certificate("changed", 0.03, 0.05, "exact binomial", 800, 0.02, fitted_on=400)
        >>> proof.evidence[:89]
        'Tested on 800 examples with the exact binomial bound; the risk observed on them was 0.02.'
        >>> proof.evidence[90:]
        'The rule was fitted on 400 further examples.'
        """
        data, unit = f" ({self.data})" if self.data else "", self.loss.unit
        fitted = (
            f" The rule was fitted on {count(self.fitted_on, f'further {unit}')}." if self.fitted_on else ""
        )
        repeats = (
            ""
            if self.unseen is None
            else f" The same is proven on {count(self.unseen, 'distinct unseen text')}, on which the risk was "
            f"{self.unseen_risk:.4g}."
        )
        verb = "Tested" if self.conditions is None else "Calibrated"
        return (
            f"{verb} on {count(self.examples, unit)}{data} with the {self.bound} bound; the risk observed "
            f"on them was {self.observed_risk:.4g}.{repeats}{fitted}"
        )

    def mismatches(
        self,
        policy: str,
        fingerprint: str,
        precision: str,
        max_length: int | None = None,
        weights: str | None = None,
        decision: str | None = None,
    ) -> list[str]:
        """How policy, model, precision, length of texts and operating point differ from those that the certificate
        was issued for, and the weights of an exported folder from those that it was stored with."""
        conditions = self.conditions or Conditions(policy="", mean_layer=0.0)
        actual: dict[str, Any] = {"policy": policy, "fingerprint": fingerprint, "precision": precision}
        if max_length is not None and conditions.max_length is not None:
            actual["max_length"] = max_length
        if weights is not None:
            actual["weights"] = weights
        issued = {name: getattr(conditions, name) for name in actual}
        if decision is not None:
            issued["decision"], actual["decision"] = self.decision or ARGMAX, decision or ARGMAX
        return [
            f"{name} {issued[name] or 'unknown'} (here: {value})"
            for name, value in actual.items()
            if issued[name] != value
        ]

    def to_json(self) -> dict[str, Any]:
        """The fields, and the promise for people who read the file. A policy adds the seal."""
        record = asdict(self) | {"promise": self.promise}
        if self.conditions is not None:
            record["conditions"]["exits"] = list(self.conditions.exits)
        return record

    @classmethod
    def from_json(cls, record: Any) -> Self:
        """The certificate that `to_json` wrote. Anything incomplete is refused: it would promise nothing."""
        if not isinstance(record, Mapping) or record.keys() - {
            *NOT_FIELDS,
            *(each.name for each in fields(cls)),
        }:
            raise BadPolicy("the certificate has unknown fields or is not an object; calibrate again.")
        values = {name: value for name, value in record.items() if name not in NOT_FIELDS}
        try:
            if values.get("conditions") is not None:
                values["conditions"] = Conditions(**values["conditions"])
            return cls(**values)
        except BadPolicy:
            raise
        except (TypeError, ValueError) as error:
            raise BadPolicy(f"the certificate is incomplete ({error}); calibrate again.") from error


def percent(fraction: float, digits: int = 4) -> str:
    return f"{100 * fraction:.{digits}g}%"


def check_certificate(
    policy: Certified,
    fingerprint: str,
    precision: str,
    max_length: int | None = None,
    weights: str | None = None,
    decision: str | None = None,
) -> Certified:
    """The policy; without its certificate, and with a warning, if that was issued for something else."""
    if policy.certificate is None:
        return policy
    different = policy.certificate.mismatches(
        str(policy), fingerprint, precision, max_length, weights, decision
    )
    if not different:
        return policy
    warnings.warn(
        f"the certificate was issued for {' and for '.join(different)}, so it does not apply here. "
        "Calibrate on a trace of this model and runtime.",
        CertificateMismatch,
        stacklevel=3,
    )
    return replace(policy, certificate=None)
