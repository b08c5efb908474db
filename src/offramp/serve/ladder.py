"""Ladder: which policy there is time for, and which are still trusted.

Rung 0 is the normal policy, each later one leaves earlier. Load steps down the ladder and quiet up again, one
rung at a time. A rung that turns out not to keep its promise is forbidden, with all below it.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from offramp.classifier.classifier import NEVER
from offramp.errors import BadPolicy
from offramp.policy import Policy

PROMISES = ("disagreement", "accuracy")
"""As `calibration.targets` has them, which is not always installed where a server is."""
FULL_DEPTH = -1
"""The rung above rung 0: nobody leaves early. It is taken when all others are forbidden."""

log = logging.getLogger(__name__)


class Ladder:
    """Policies to step along. Time is told by who asks, so that there is no clock in here.

    Args:
        rungs: the normal policy, then those for more and more load; each of those with its certificate.
        high: the load, as a share of what may wait, from which on the next rung is taken.
        low: the load under which it is quiet.
        fall: seconds from one step down to the next, in which it can show its effect.
        rise: seconds of quiet before each step up.
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
        if not 0 <= low < high <= 1:
            raise BadPolicy(f"low={low} and high={high} must be shares of what may wait, the low one less.")
        self.rungs = tuple(rungs)
        self.high, self.low, self.fall, self.rise = high, low, fall, rise
        self.broken: set[int] = set()
        """Rungs that turned out not to keep their promise."""
        self.current = 0
        self._fell = -inf
        self._quiet_since: float | None = None
        self._lock = threading.Lock()

    def policy(self, rung: int) -> Policy:
        return NEVER if rung == FULL_DEPTH else self.rungs[rung]

    @property
    def last(self) -> int:
        """The lowest rung that is not forbidden; `FULL_DEPTH` if all are."""
        return min(self.broken, default=len(self.rungs)) - 1

    @property
    def forbidden(self) -> tuple[Policy, ...]:
        return self.rungs[self.last + 1 :]

    def rung(self, load: float, now: float) -> int:
        """The rung for this load at this moment."""
        with self._lock:
            if load >= self.high and now - self._fell >= self.fall and self.current < self.last:
                self.current += 1
                self._fell = now
            if load >= self.low:
                self._quiet_since = None
            elif self._quiet_since is None:
                self._quiet_since = now
            while self._quiet_since is not None and now - self._quiet_since >= self.rise and self.current > 0:
                self.current -= 1
                self._quiet_since += self.rise
            return self.current

    def forbid(self, rung: int) -> None:
        """Never again this rung, nor those that leave still earlier."""
        with self._lock:
            self.broken.add(max(rung, 0))
            self.current = min(self.current, self.last)


def share_broken(ladder: Ladder, folder: Path) -> None:
    """What one worker found broken, all of them forbid, and so do those that replace them."""
    for rung in tuple(ladder.broken):
        (folder / f"broken-{rung}").touch()
    for file in folder.glob("broken-*"):
        rung = int(file.name.removeprefix("broken-"))
        if rung not in ladder.broken:
            ladder.forbid(rung)
            log.error(
                "rung %d, %s, proved wrong in another worker and is no longer used", rung, ladder.rungs[rung]
            )


def check_rungs(rungs: Sequence[Policy]) -> None:
    if not rungs:
        raise BadPolicy("a ladder needs a rung: give at least the normal policy.")
    for number, policy in enumerate(rungs):
        if number and not policy.certificate:
            raise BadPolicy(
                f"rung {number}, {policy}, has no certificate, and load must not bend answers past what is proven: "
                "make it with `offramp calibrate`."
            )
        if policy.certificate:
            check_promise(number, policy.certificate)
    for number, (above, below) in enumerate(pairwise(policy.certificate or {} for policy in rungs), 1):
        same_data = above.get("data") == below.get("data")
        if same_data and above.get("mean_layer", inf) < below.get("mean_layer", 0):
            raise BadPolicy(f"rung {number} leaves later than the one before it; order rungs by mean layer.")


def check_promise(number: int, certificate: Mapping[str, Any]) -> None:
    """Whether it says what the audit holds answers against."""
    epsilon = certificate.get("epsilon")
    bounds = epsilon.values() if isinstance(epsilon, Mapping) else [epsilon]
    told = bool(bounds) and all(isinstance(bound, int | float) and 0 < bound < 1 for bound in bounds)
    if not told or certificate.get("of") not in PROMISES:
        raise BadPolicy(
            f"the certificate of rung {number} does not say how many answers may differ; "
            "make it with `offramp calibrate`."
        )
