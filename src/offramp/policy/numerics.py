"""Whether a certificate speaks of the numbers that are computed here."""

import warnings

from offramp.errors import OtherNumerics
from offramp.policy.policy import Policy


def check_numerics(policy: Policy, precision: str) -> None:
    """Warns if what the policy promises was proven with logits of another precision."""
    proven = (policy.certificate or {}).get("precision") or precision
    if proven != precision:
        warnings.warn(
            f"the certificate of {policy} was made with logits in {proven}, and these are in {precision}, so what "
            "it promises is not proven here. Calibrate on a trace of this model and runtime.",
            OtherNumerics,
            stacklevel=3,
        )
