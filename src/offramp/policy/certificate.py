"""Certificate: what calibration proved about a policy, and for which model, precision and data."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from offramp.errors import BadPolicy, CertificateMismatch

if TYPE_CHECKING:
    from offramp.policy.policy import Policy

RISKS = ("disagreement", "accuracy")


@dataclass(frozen=True)
class Certificate:
    """A bound on a risk, with the evidence for it. Part of a policy's JSON form."""

    promise: str
    """The exact statement, with every condition; `summary` is the short one."""
    policy: str
    """The text form of the policy it was issued for."""
    of: str
    """The risk: "disagreement" (the prediction differs from full depth) or "accuracy" (a right one is lost)."""
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
    data: str = ""
    fingerprint: str = ""
    runtime: str = ""
    precision: str = ""
    rules_tried: int = 1
    """The number of rules that shared delta."""
    fitted_on: int = 0
    """For a rule that learns: the number of further examples of the same data that it was fitted on."""
    rule_chosen_on: str | None = None
    temperatures_fitted_on: str | None = None

    def __post_init__(self) -> None:
        bounds = self.epsilon.values() if isinstance(self.epsilon, Mapping) else [self.epsilon]
        if self.of not in RISKS or not bounds or not all(0 < bound < 1 for bound in [*bounds, self.delta]):
            raise BadPolicy(
                f"a certificate needs a risk, epsilon and delta, not {self.of!r}, {self.epsilon}."
            )
        if self.examples < 1 or not 0 <= self.observed_risk <= 1:
            raise BadPolicy(f"a certificate cannot rest on {self.examples} examples.")
        object.__setattr__(self, "exits", tuple(map(float, self.exits)))

    @property
    def summary(self) -> str:
        """One sentence for people.

        >>> proof = Certificate("...", "entropy:0.3", "disagreement", 0.03, 0.05, "", 800, 0.02, 3, (), data="a.csv")
        >>> proof.summary
        'With 95 % confidence, at most 3 % of predictions differ from full depth (on data like a.csv).'
        """
        loss = {
            "disagreement": "of predictions differ from full depth",
            "accuracy": "of correct predictions are lost",
        }
        shares = (
            [f"{100 * self.epsilon:.4g} %"]
            if not isinstance(self.epsilon, Mapping)
            else [f"{100 * bound:.4g} % (of {name})" for name, bound in self.epsilon.items()]
        )
        within = "" if self.tolerance is None else f" by more than {self.tolerance:g}"
        where = f"data like {self.data}" if self.data else "data like the calibration examples"
        return (
            f"With {100 * (1 - self.delta):.4g} % confidence, at most {', '.join(shares)} {loss[self.of]}{within} "
            f"(on {where})."
        )

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
        except (TypeError, ValueError) as error:
            raise BadPolicy(f"the certificate is incomplete ({error}); calibrate again.") from error


def check_certificate(policy: "Policy", fingerprint: str, precision: str) -> None:
    """Warn if the policy's certificate was issued for a different policy, model or precision."""
    if policy.certificate is None:
        return
    actual = {"policy": str(policy), "fingerprint": fingerprint, "precision": precision}
    issued = {name: getattr(policy.certificate, name) for name in actual}
    different = [
        f"{name} {issued[name] or 'unknown'} (here: {value})"
        for name, value in actual.items()
        if issued[name] != value
    ]
    if different:
        warnings.warn(
            f"the certificate was issued for {' and for '.join(different)}, so it does not hold. "
            "Calibrate on a trace of this model and runtime.",
            CertificateMismatch,
            stacklevel=3,
        )
