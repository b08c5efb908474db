"""Ladder: policies that trade accuracy for speed as load grows.

Rung 0 is the normal one, each later rung exits earlier. High load steps down the ladder, low load back up, one
rung at a time. A rung whose certificate proves wrong is forbidden, with all rungs below it, as long as it does.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from offramp.errors import BadPolicy
from offramp.policy import Policy
from offramp.rules.rank import Rank

FULL_DEPTH = -1
"""The rung above rung 0: no early exit. Used when all others are forbidden."""
OWN_CERTIFICATE, STRICTER_RUNG = "certificate", "stricter rung"
"""Why a rung is forbidden: its certificate, or that of a rung above it, proved wrong."""


class Ladder:
    """Policies to step along. The caller passes the time, so there is no clock in here.

    Args:
        rungs: the normal policy, then those for more and more load, each with its certificate.
        high: step down when the queue is this full, from 0 to 1.
        low: step up when the queue has been less full than this for a while.
        fall: seconds between two steps down, so that one can take effect before the next.
        rise: seconds of low load before each step up.
    """

    def __init__(
        self,
        rungs: Sequence[Policy],
        *,
        high: float = 0.25,
        low: float = 0.05,
        fall: float = 0.25,
        rise: float = 2.0,
    ) -> None:
        check_rungs(rungs)
        self.rungs = tuple(rungs)
        self.high, self.low, self.fall, self.rise = high, low, fall, rise
        self.broken: set[int] = set()
        """Rungs whose certificate proved wrong."""
        self.current = 0
        self._fell = -inf
        self._low_since: float | None = None
        self._lock = threading.Lock()

    @property
    def last(self) -> int:
        """The lowest rung that is allowed; `FULL_DEPTH` if none is."""
        return min(self.broken, default=len(self.rungs)) - 1

    @property
    def forbidden(self) -> tuple[Policy, ...]:
        return self.rungs[self.last + 1 :]

    @property
    def reasons(self) -> list[str]:
        """Why each rung is forbidden; empty if it is allowed."""
        return [
            "" if rung <= self.last else OWN_CERTIFICATE if rung in self.broken else STRICTER_RUNG
            for rung in range(len(self.rungs))
        ]

    def step(self, load: float, now: float) -> int:
        """Moves to the rung for this load, and returns it."""
        with self._lock:
            if load >= self.high and now - self._fell >= self.fall and self.current < self.last:
                self.current += 1
                self._fell = now
            if load >= self.low:
                self._low_since = None
            elif self._low_since is None:
                self._low_since = now
            while self._low_since is not None and now - self._low_since >= self.rise and self.current > 0:
                self.current -= 1
                self._low_since += self.rise
            return self.current

    def forbid(self, rung: int) -> None:
        """Rules out this rung and all below it."""
        with self._lock:
            self.broken.add(max(rung, 0))
            self.current = min(self.current, self.last)

    def allow(self, rung: int) -> None:
        """Takes back `forbid`."""
        with self._lock:
            self.broken.discard(rung)
            self.current = max(self.current, min(self.last, 0))


def check_rungs(rungs: Sequence[Policy]) -> None:
    if not rungs:
        raise BadPolicy("a ladder needs at least the normal policy.")
    for number, policy in enumerate(rungs):
        if number and not policy.certificate:
            raise BadPolicy(
                f"rung {number}, {policy}, has no certificate; only certified ones may be used under load. "
                "`offramp calibrate` issues them."
            )
        if top_k_of(policy) != top_k_of(rungs[0]):
            raise BadPolicy(
                f"rung {number}, {policy}, cannot follow {rungs[0]}: "
                "all must be for single texts, or find the same top k of a list."
            )
    for number, (above, below) in enumerate(pairwise(policy.certificate for policy in rungs), 1):
        if not (above and below and above.conditions and below.conditions):
            continue
        if above.data == below.data and above.conditions.mean_layer < below.conditions.mean_layer:
            raise BadPolicy(
                f"rung {number} exits later than the rung before it; order rungs from late to early exits."
            )


def top_k_of(policy: Policy) -> int | None:
    """How many of the best documents of a list the policy finds; None if it decides on single texts."""
    return policy.rule.top_k if isinstance(policy.rule, Rank) else None
