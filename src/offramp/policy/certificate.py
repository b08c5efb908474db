"""Whether a certificate speaks of what runs here."""

import warnings

from offramp.errors import CertificateMismatch
from offramp.policy.policy import Policy


def check_certificate(policy: Policy, fingerprint: str, precision: str) -> None:
    """Warns if what the policy promises was proven for another policy, another model or another precision."""
    proven = policy.certificate or {}
    here = {"policy": str(policy), "fingerprint": fingerprint, "precision": precision}
    other = [
        f"{name} {proven[name]}, which is {value} here"
        for name, value in here.items()
        if proven.get(name) and proven[name] != value
    ]
    if other:
        warnings.warn(
            f"the certificate was made for {' and for '.join(other)}: what it promises is not proven here. "
            "Calibrate on a trace of this model and runtime.",
            CertificateMismatch,
            stacklevel=3,
        )
