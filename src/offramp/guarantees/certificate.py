"""Certificate: what calibration proved about a policy, and for which model, precision and data."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar

from offramp.errors import BadPolicy, CertificateMismatch
from offramp.wording import count

Certified = TypeVar("Certified", bound=Any)

RISKS = ("disagreement", "accuracy")
RANK_RISKS = ("overlap", "ndcg")
"""Of a rank rule; its examples are queries."""


@dataclass(frozen=True)
class Certificate:
    """A bound on a risk, with the evidence for it. Part of a policy's JSON form."""

    promise: str
    """The exact statement, with every condition; `summary` is the short one."""
    policy: str
    """The text form of the policy it was issued for."""
    risk: str
    """The risk: "disagreement" (the prediction differs from the reference) or "accuracy" (a right one is lost); of a
    rank rule, "overlap" (documents missing from the top k) or "ndcg" (1 - nDCG@k against the reference's order)."""
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
    mean_layer: float
    exits: tuple[float, ...]
    """The fraction of calibration examples that left at each exit."""
    tolerance: float | None = None
    """In regression: numbers no further apart than this count as equal."""
    by_class: Mapping[str, Mapping[str, float]] | None = None
    """With bounds by class: examples and observed risk of each."""
    reference: str = ""
    """The model whose predictions are kept; empty: the same model at full depth."""
    data: str = ""
    fingerprint: str = ""
    runtime: str = ""
    precision: str = ""
    rules_tried: int = 1
    """The number of rules (times precisions and attempts, where there were several) that shared delta."""
    fitted_on: int = 0
    """For a rule that learns: the number of further examples of the same data that it was fitted on."""
    rule_chosen_on: str | None = None
    max_length: int | None = None
    """The number of tokens at which the calibration texts were truncated; None if unknown."""
    top_k: int | None = None
    """Of a rank rule: how many documents were asked for."""

    def __post_init__(self) -> None:
        bounds = self.epsilon.values() if isinstance(self.epsilon, Mapping) else [self.epsilon]
        if (
            self.risk not in (*RISKS, *RANK_RISKS)
            or not bounds
            or not all(0 < bound < 1 for bound in [*bounds, self.delta])
        ):
            raise BadPolicy(
                f"a certificate needs a risk, epsilon and delta, not {self.risk!r}, {self.epsilon}."
            )
        if self.examples < 1 or not 0 <= self.observed_risk <= 1:
            raise BadPolicy(
                f"a certificate needs examples and their risk, not {self.examples} and {self.observed_risk}."
            )
        object.__setattr__(self, "exits", tuple(map(float, self.exits)))

    @property
    def summary(self) -> str:
        """One sentence for people.

        >>> proof = Certificate("...", "entropy:0.3", "disagreement", 0.03, 0.05, "", 800, 0.02, 3, (), data="a.csv")
        >>> proof.summary
        'With 95 % confidence, at most 3 % of predictions differ from full depth (on data like a.csv).'
        """
        reference = self.reference or "full depth"
        loss = {
            "disagreement": f"of predictions differ from {reference}",
            "accuracy": "of correct predictions are lost",
            "overlap": f"of the top {self.top_k} of {reference} are missed on average",
            "ndcg": f"of nDCG@{self.top_k} against the order of {reference} are lost on average",
        }
        bounds = self.epsilon if isinstance(self.epsilon, Mapping) else {"": self.epsilon}
        shares = [
            f"{100 * bound:.4g} %" + (f" (of {name})" if name else "") for name, bound in bounds.items()
        ]
        within = "" if self.tolerance is None else f" by more than {self.tolerance:g}"
        where = f"data like {self.data}" if self.data else "data like the calibration examples"
        return (
            f"With {100 * (1 - self.delta):.4g} % confidence, at most {', '.join(shares)} {loss[self.risk]}{within} "
            f"(on {where})."
        )

    @property
    def evidence(self) -> str:
        """The examples behind the bound.

        >>> numbers = 0.03, 0.05, "exact binomial", 800, 0.02, 3, ()
        >>> Certificate("...", "entropy:0.3", "disagreement", *numbers).evidence
        'Calibrated on 800 examples with the exact binomial bound; the risk observed on them was 0.02.'
        >>> Certificate("...", "agreement:0.9", "disagreement", *numbers, fitted_on=400).evidence[-44:]
        'The rule was fitted on 400 further examples.'
        """
        data = f" ({self.data})" if self.data else ""
        one = "query" if self.risk in RANK_RISKS else "example"
        fitted = (
            f" The rule was fitted on {count(self.fitted_on, f'further {one}')}." if self.fitted_on else ""
        )
        return (
            f"Calibrated on {count(self.examples, one)}{data} with the {self.bound} bound; the risk observed "
            f"on them was {self.observed_risk:.4g}.{fitted}"
        )

    def mismatches(
        self, policy: str, fingerprint: str, precision: str, max_length: int | None = None
    ) -> list[str]:
        """How policy, model, precision and length of texts differ from those that the certificate was issued for."""
        actual: dict[str, Any] = {"policy": policy, "fingerprint": fingerprint, "precision": precision}
        if max_length is not None and self.max_length is not None:
            actual["max_length"] = max_length
        issued = {name: getattr(self, name) for name in actual}
        return [
            f"{name} {issued[name] or 'unknown'} (here: {value})"
            for name, value in actual.items()
            if issued[name] != value
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"exits": list(self.exits)}

    @classmethod
    def from_json(cls, record: Any) -> Self:
        """The certificate that `to_json` wrote. Anything incomplete is refused: it would promise nothing."""
        known = {field.name for field in fields(cls)}
        if not isinstance(record, Mapping) or record.keys() - known:
            raise BadPolicy("the certificate has unknown fields or is not an object; calibrate again.")
        try:
            return cls(**record)
        except BadPolicy:
            raise
        except (TypeError, ValueError) as error:
            raise BadPolicy(f"the certificate is incomplete ({error}); calibrate again.") from error


def check_certificate(
    policy: Certified, fingerprint: str, precision: str, max_length: int | None = None
) -> Certified:
    """The policy or rank rule; without its certificate, and with a warning, if that was issued for something else."""
    if policy.certificate is None:
        return policy
    different = policy.certificate.mismatches(str(policy), fingerprint, precision, max_length)
    if not different:
        return policy
    warnings.warn(
        f"the certificate was issued for {' and for '.join(different)}, so it does not hold. "
        "Calibrate on a trace of this model and runtime.",
        CertificateMismatch,
        stacklevel=3,
    )
    return replace(policy, certificate=None)
