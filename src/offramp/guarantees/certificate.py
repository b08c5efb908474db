"""Certificate: what was proven, and for what."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar

from offramp.errors import BadPolicy, CertificateMismatch
from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.guarantee import BY_CLASS, BY_EXIT, are_fractions
from offramp.guarantees.losses import LOSSES, Loss
from offramp.wording import count, enumerate_names

NOT_FIELDS = "promise", "seal"
"""What the JSON form has besides the fields: a sentence for people, and a hash of the policy."""
ARGMAX = "the most likely class"
"""The operating point that has no text."""
MOST_NAMES = 8
"""Groups whose names are in a summary."""
Certified = TypeVar("Certified", bound=Any)


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
class ProvenBound:
    """A bound on one risk, for all examples or those of a group, with the evidence for it."""

    risk: str
    """The loss whose mean is bounded, of `LOSSES`."""
    epsilon: float
    examples: int
    """The number of examples that it was tested on."""
    observed_risk: float
    """Their mean loss."""
    bound: str = "exact binomial"
    """The name of the statistical bound."""
    group: str = ""
    """An exit, a class or a category; empty: all examples."""
    tolerance: float | None = None
    """Numbers no further apart than this count as equal."""
    unseen: int | None = None
    """If texts repeat: how many of these examples are distinct texts that were not learned from."""
    unseen_risk: float | None = None
    """The risk on those, each counted once; the same bound was proven for it."""

    def __post_init__(self) -> None:
        if self.risk not in LOSSES or not are_fractions(self.epsilon):
            raise BadPolicy(f"a certificate needs a risk and epsilon, not {self.risk!r} and {self.epsilon}.")
        if self.examples < 1 or not BOUNDS[self.loss.bound].lowest <= self.observed_risk <= 1:
            raise BadPolicy(
                f"a certificate needs examples and their risk, not {self.examples} and {self.observed_risk}."
            )

    @property
    def loss(self) -> Loss:
        return LOSSES[self.risk]


@dataclass(frozen=True)
class Certificate:
    """Proven bounds, which hold together, with the evidence for them. Part of a policy's JSON form."""

    bounds: tuple[ProvenBound, ...]
    delta: float
    """The probability, over the draw of the calibration examples, that any of the bounds is wrong."""
    examples: int
    """The number of calibration examples."""
    by: str = ""
    """What the groups of the bounds are: "exit", "class" or a name of categories; empty: there are none."""
    unseen: int | None = None
    """If texts repeat: the number of distinct calibration texts that were not learned from."""
    reference: str = ""
    """The model whose predictions are kept; empty: the same model at full depth."""
    data: str = ""
    top_k: int | None = None
    """For rankings: how many documents count."""
    decision: str = ""
    """The operating point, such as "spam>=0.3"; empty: the most likely class."""
    population: int | None = None
    """If the claim is about the rows of the data alone: how many there are, of which `examples` were examined."""
    rules_tried: int = 1
    """The number of rules (times precisions and rungs of a ladder, where there were several) that shared delta."""
    fitted_on: int = 0
    """For a rule that learns: the number of further examples of the same data that it was fitted on."""
    conditions: Conditions | None = None
    """None if the claim is about predictions alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", tuple(self.bounds))
        if not self.bounds or not 0 < self.delta < 1:
            raise BadPolicy(f"a certificate needs bounds and a delta, not {self.delta}.")
        if self.examples < 1:
            raise BadPolicy(f"a certificate needs examples, not {self.examples}.")

    @property
    def risk(self) -> str:
        """That of the first bound, as are the following."""
        return self.bounds[0].risk

    @property
    def epsilon(self) -> float:
        return self.bounds[0].epsilon

    @property
    def observed_risk(self) -> float:
        return self.bounds[0].observed_risk

    @property
    def unseen_risk(self) -> float | None:
        return self.bounds[0].unseen_risk

    @property
    def tolerance(self) -> float | None:
        return self.bounds[0].tolerance

    @property
    def loss(self) -> Loss:
        return self.bounds[0].loss

    @property
    def summary(self) -> str:
        """One sentence for people.

        >>> proof = Certificate((ProvenBound("changed", 0.03, 800, 0.02),), 0.05, 800, data="a.csv")
        >>> proof.summary
        'With 95% confidence, at most 3% of predictions differ from full depth (on data like a.csv).'
        >>> replace(proof, bounds=(ProvenBound("ndcg", 0.03, 9, 0.02),), top_k=10, reference="X").summary[21:]
        "nDCG@10 against X's order drops by at most 3% on average (on data like a.csv)."
        """
        where = f"on data like {self.data or 'the calibration examples'}"
        if self.population is not None:
            where = f"among the {self.population} rows of {self.data}"
        return f"With {percent(1 - self.delta)} confidence, {self.claim} ({where})."

    @property
    def claim(self) -> str:
        """What is bounded, and how.

        >>> bounds = [ProvenBound("missed", 0.02, 80, 0.0), ProvenBound("false_alarm", 0.05, 800, 0.01)]
        >>> proof = Certificate(tuple(bounds), 0.05, 880, reference="X", decision="spam>=0.3")
        >>> print(proof.claim.replace(" and ", "\\n"))
        at most 2% of examples that X says yes to lose a yes
        at most 5% of examples that X says no to get a yes instead, where the decision is spam>=0.3
        >>> groups = [ProvenBound("changed", 0.03, 400, 0.0, group=name) for name in ("de", "en")]
        >>> Certificate(tuple(groups), 0.05, 800, by="language").claim
        'at most 3% of predictions differ from full depth, in every language (de, en)'
        """
        return " and ".join(map(self.claim_about, self.by_risk())) + self.decided

    def claim_about(self, bounds: list[ProvenBound]) -> str:
        """The claim about one risk."""
        first, groups = bounds[0], [bound.group for bound in bounds]
        within = "" if first.tolerance is None else first.loss.within.format(tolerance=first.tolerance)
        shares = [percent(bound.epsilon) for bound in bounds]
        if not self.by or len({*shares}) > 1:
            of_groups = [
                f"{share} (of {name})" if name else share for share, name in zip(shares, groups, strict=True)
            ]
            return self.words(first.loss.summary, ", ".join(of_groups)) + within
        if len(groups) == 1 and self.by != BY_EXIT:
            return f"{self.words(first.loss.summary, shares[0])}{within}, where the {self.by} is {groups[0]}"
        named = ", ".join(groups) if len(groups) <= MOST_NAMES else f"{len(groups)} in all"
        every = "at every exit taken" if self.by == BY_EXIT else f"in every {self.by}"
        return f"{self.words(first.loss.summary, shares[0])}{within}, {every} ({named})"

    @property
    def promise(self) -> str:
        """The exact statement, with every condition.

        >>> spam = ProvenBound("accuracy", 0.03, 800, 0.02, group="spam")
        >>> Certificate((spam,), 0.05, 800, by="class").promise[-108:]
        "a fraction 0.03 of examples lose a correct prediction of full depth, separately among those labelled 'spam'."
        """
        unit = self.loss.unit
        units, scope = self.loss.units, " from the same distribution"
        if unit == "query":
            scope = f" with documents{scope}, when the top {self.top_k} is asked for"
        drawn = f"the {units} tested" if self.conditions is None else f"the calibration {units}"
        if self.population is not None:
            drawn, scope = "the rows examined", f" among the {self.population} rows of {self.data}"
        return (
            f"With probability at least {1 - self.delta:g} over the draw of {drawn}, for {units}"
            f"{scope}: {'; '.join(self.statements())}{self.decided}."
            + ("" if self.unseen is None else " The same holds for new texts, each counted once.")
        )

    def statements(self) -> Iterator[str]:
        """The exact claim about each risk; where groups have bounds of their own, about each group."""
        for of_risk in self.by_risk():
            for epsilon in dict.fromkeys(bound.epsilon for bound in of_risk):
                first, names = of_risk[0], [bound.group for bound in of_risk if bound.epsilon == epsilon]
                share = f"{epsilon:g}"
                if first.loss.bound == "exact binomial":
                    share = f"a fraction {epsilon:g} of {self.words(first.loss.examples)}"
                near = first.tolerance
                within = "" if near is None else f" (numbers within {near:g} count as equal)"
                among = f", separately among those {self.which(first.loss, names)}" if self.by else ""
                yield self.words(first.loss.statement, share) + within + among

    def which(self, loss: Loss, groups: Iterable[str]) -> str:
        """The examples of a group."""
        if self.by == BY_EXIT:
            return f"that exit at {enumerate_names(groups)}"
        names = enumerate_names(map(repr, groups))
        if self.by != BY_CLASS:
            return f"whose {self.by} is {names}"
        return (
            f"labelled {names}"
            if loss.needs_labels
            else self.words(f"that {{reference}} predicts as {names}")
        )

    @property
    def decided(self) -> str:
        return f", where the decision is {self.decision}" if self.decision else ""

    def by_risk(self) -> list[list[ProvenBound]]:
        """The bounds on each risk."""
        risks = dict.fromkeys(bound.risk for bound in self.bounds)
        return [[bound for bound in self.bounds if bound.risk == risk] for risk in risks]

    def words(self, template: str, bounds: str = "") -> str:
        return template.format(
            bounds=bounds,
            reference=self.reference or "full depth",
            top_k=self.top_k,
            predictions="decisions" if self.decision else "predictions",
            a_prediction="a decision" if self.decision else "a prediction",
        )

    @property
    def evidence(self) -> str:
        """The examples behind the bounds.

        >>> one = ProvenBound("changed", 0.03, 800, 0.02)
        >>> proof = Certificate((one,), 0.05, 800, fitted_on=400)
        >>> proof.evidence[:89]
        'Tested on 800 examples with the exact binomial bound; the risk observed on them was 0.02.'
        >>> proof.evidence[90:]
        'The rule was fitted on 400 further examples.'
        >>> groups = replace(one, examples=300, group="de"), replace(one, examples=500, group="en")
        >>> Certificate(groups, 0.05, 800, by="language").evidence[54:]
        'the risks observed were 0.02 on 300 examples (de), 0.02 on 500 examples (en).'
        """
        data, unit = f" ({self.data})" if self.data else "", self.loss.unit
        methods = " and the ".join(dict.fromkeys(bound.bound for bound in self.bounds))
        plural = "bound" if " and " not in methods else "bounds"
        verb = "Tested" if self.conditions is None else "Calibrated"
        risks = [f"{bound.observed_risk:.4g}" for bound in self.bounds]
        new = [f"{bound.unseen_risk:.4g}" for bound in self.bounds if bound.unseen_risk is not None]
        on = [count(bound.examples, unit) for bound in self.bounds]
        if len(self.bounds) == 1:
            tested, observed = on[0], f"the risk observed on them was {risks[0]}"
            repeats = "".join(f", on which the risk was {risk}" for risk in new)
        else:
            about = [f" ({name})" if name else "" for name in map(self.name_of, self.bounds)]
            tested = count(self.examples, unit)
            observed = "the risks observed were " + ", ".join(
                f"{risk} on {number}{name}" for risk, number, name in zip(risks, on, about, strict=True)
            )
            numbers = [bound.unseen for bound in self.bounds if bound.unseen_risk is not None]
            repeats = ", on which the risks were " + ", ".join(
                f"{risk} on {number}{name}" for risk, number, name in zip(new, numbers, about, strict=False)
            )
        lines = [f"{verb} on {tested}{data} with the {methods} {plural}; {observed}."]
        if self.unseen is not None:
            lines.append(f"The same is proven on {count(self.unseen, 'distinct unseen text')}{repeats}.")
        if self.fitted_on:
            what = "The policies to test were" if self.by == BY_EXIT else "The rule was"
            lines.append(f"{what} fitted on {count(self.fitted_on, f'further {unit}')}.")
        return " ".join(lines)

    def name_of(self, bound: ProvenBound) -> str:
        """What tells it from the other bounds."""
        several = len(self.by_risk()) > 1
        return ", ".join(filter(None, [bound.risk if several else "", bound.group]))

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
        record = asdict(self) | {"bounds": [asdict(bound) for bound in self.bounds], "promise": self.promise}
        if self.conditions is not None:
            record["conditions"]["exits"] = list(self.conditions.exits)
        return record

    @classmethod
    def from_json(cls, record: Any) -> Self:
        """The certificate that `to_json` wrote. Anything incomplete is refused: it would promise nothing."""
        if not isinstance(record, Mapping) or record.keys() - {
            *NOT_FIELDS,
            *(field.name for field in fields(cls)),
        }:
            raise BadPolicy("the certificate has unknown fields or is not an object; calibrate again.")
        values = {name: value for name, value in record.items() if name not in NOT_FIELDS}
        try:
            if values.get("conditions") is not None:
                values["conditions"] = Conditions(**values["conditions"])
            values["bounds"] = tuple(ProvenBound(**bound) for bound in values["bounds"])
            return cls(**values)
        except BadPolicy:
            raise
        except (KeyError, TypeError, ValueError) as error:
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
