"""Audit: how often the answers of each rung are not those of full depth, with a bound that holds at any time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offramp.classifier import Prediction
from offramp.policy import Policy
from offramp.stages import Tokens


@dataclass(frozen=True)
class Account:
    """What is known of one rung."""

    rung: int
    policy: str
    examined: int
    """Answers compared with full depth."""
    disagreed: int
    """How many of them were not the same."""
    lower: float
    upper: float
    """The share of all answers that are not those of full depth lies between these, with confidence 1 - delta at
    all times together."""
    epsilon: float | None
    """What the certificate allows, if it speaks of all answers alike."""
    verdict: str | None
    """Of the certificate: "holds", "open" or "broken"; None without one."""
    exits: tuple[int, ...]
    """How many of the latest answers left at each exit."""
    drift: float | None
    """Total variation distance of these from the exits at calibration, 0 to 1; None if those are not known."""
    drifted: bool
    """Whether that is enough for a warning."""


class Audit:
    def __init__(
        self,
        policies: Sequence[Policy],
        layers: Sequence[int],
        *,
        share: float = 0.01,
        delta: float = 0.05,
        keep: int = 256,
        seed: int = 0,
    ) -> None:
        self.kept = 0
        """Answers waiting to be examined."""
        self.dropped = 0
        """Answers that were sampled and then dropped for newer ones."""

    def offer(self, rung: int, tokens: Tokens, prediction: Prediction) -> None:
        """An answer of a rung, of which a sampled share is kept."""

    def examine(self, full_depth: Callable[[Tokens], Prediction]) -> int | None:
        """Compare one answer that was kept. The rung, if this has just broken its certificate."""
        return None

    def accounts(self) -> list[Account]:
        return []
