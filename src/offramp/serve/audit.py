"""Audit: how often each rung's predictions differ from the reference, with bounds valid at any time.

The reference is full depth, or the model that the certificate names (see `offramp.retrofits`). A random share of the
predictions is kept and run again when there is time; which are dropped because there is none does not depend on them.
A certificate is broken once the lower bound on the share that differs exceeds what it allows: the data have changed
since calibration.

A certificate on accuracy bounds the correct predictions that are lost, and without labels the audit cannot tell
which predictions are correct. The lost ones are among those that differ, so few differences prove that such a
certificate holds, but many do not prove it broken.
"""

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from offramp.classifier import Prediction
from offramp.criteria.base import Criterion
from offramp.policy import Policy
from offramp.policy.text import class_indices
from offramp.serve.confidence_sequence import bounds, is_above
from offramp.stages import Tokens

BLOCK = 1000
"""Predictions are counted in all and in blocks of this size: a long good past must not hide a change."""
DRIFT_WINDOW = 10_000
"""How many of the latest predictions are compared with the exits at calibration."""
DRIFT_MINIMUM = 1000
"""Predictions below which no drift is reported: with 12 exits, chance alone gives 0.06 here."""
DRIFT_LIMIT = 0.1
"""Total variation distance from which the exits count as drifted."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RungReport:
    """What the audit found for one rung."""

    rung: int
    policy: str
    examined: int
    """Predictions compared with the reference."""
    disagreed: int
    """Those of them that differed."""
    dropped: int
    """Predictions drawn for the audit and never compared, for lack of time."""
    lower: float
    upper: float
    """Bounds on the share of all predictions that differ from the reference, valid at all times together with
    confidence 1 - delta."""
    by_class: Mapping[str, tuple[float, float]]
    """The same bounds per class that full depth predicts, if the certificate has a bound for each."""
    epsilon: float | None
    """The certificate's bound, if it is one for all classes."""
    verdict: str | None
    """On the certificate: "holds", "open" or "broken"; None without one."""
    exits: tuple[int, ...]
    """How many of the latest predictions came from each exit."""
    drift: float | None
    """Total variation distance of these from the exits at calibration, 0 to 1; None if those are not known."""
    drifted: bool
    """Whether the drift is large enough for a warning."""


class Audit:
    """Audits all rungs of a ladder. Thread-safe.

    Args:
        policies: the rungs of the ladder.
        layers: the layers of the model's exits.
        share: the share of predictions to examine.
        delta: the probability, for each rung, that a certificate which holds is ever called broken.
        keep: how many predictions of a rung may wait to be examined; then the oldest is dropped.
        seed: for drawing the share.
    """

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
        self.share = share
        self._rungs = [RungAudit(policy, layers, delta) for policy in policies]
        self._samples = [deque[tuple[Tokens, Prediction]](maxlen=keep) for _ in policies]
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """Predictions that wait to be examined."""
        return sum(map(len, self._samples))

    def offer(self, rung: int, tokens: Tokens, prediction: Prediction) -> None:
        """Counts a prediction made by this rung's policy alone, and maybe keeps it."""
        with self._lock:
            self._rungs[rung].count_exit(prediction.layer)
            if self._random.random() < self.share:
                samples = self._samples[rung]
                self._rungs[rung].dropped += len(samples) == samples.maxlen
                samples.append((tokens, prediction))

    def examine(
        self,
        full_depth: Callable[[Tokens], Prediction],
        original: Callable[[Tokens], Prediction] | None = None,
    ) -> int | None:
        """Compares one kept prediction, of the rung with the fewest examined. Returns the rung if this breaks its
        certificate. `original` is the model that certificates name, if that is not full depth."""
        with self._lock:
            rungs = [rung for rung, samples in enumerate(self._samples) if samples]
            if not rungs:
                return None
            rung = min(rungs, key=lambda rung: self._rungs[rung].all.examined)
            tokens, prediction = self._samples[rung].popleft()
        audited = self._rungs[rung]
        if original is not None and audited.certificate and audited.certificate.reference:
            reference = original(tokens)
        else:
            reference = prediction if audited.is_full_depth(prediction) else full_depth(tokens)
        with self._lock:
            was_broken = audited.broken
            audited.compare(prediction, reference)
            return rung if audited.broken and not was_broken else None

    def reports(self) -> list[RungReport]:
        with self._lock:
            return [audited.report(rung) for rung, audited in enumerate(self._rungs)]


class RungAudit:
    def __init__(self, policy: Policy, layers: Sequence[int], delta: float) -> None:
        self.policy = policy
        self.layers = tuple(layers)
        self.delta = delta
        self.certificate = policy.certificate
        exits = policy.certificate.exits if policy.certificate else ()
        self.calibrated = exits if len(exits) == len(self.layers) else None
        """The fraction that left at each exit at calibration, if known."""
        self.latest: deque[int] = deque()
        """The layers of the latest predictions."""
        self.exits = Counter[int]()
        """The counts of `latest`."""
        self.drifted = self.broken = False
        self.dropped = 0
        self.all = Tally()
        self.by_class: dict[str, Tally] = {}
        self.bounded: list[tuple[Tally, float]] = []
        """What the certificate bounds and can be checked without labels, each with its bound."""
        if policy.certificate is None:
            return
        epsilon, of = policy.certificate.epsilon, policy.certificate.of
        if isinstance(epsilon, Mapping):
            if of == "disagreement":
                self.by_class = {name: Tally() for name in epsilon}
                self.bounded = [*zip(self.by_class.values(), epsilon.values(), strict=True)]
        elif of == "disagreement" or policy.certificate.tolerance is None:
            # with a tolerance, a correct and a wrong number may still be within it of each other
            self.bounded = [(self.all, epsilon)]

    def count_exit(self, layer: int) -> None:
        if len(self.latest) == DRIFT_WINDOW:
            self.exits[self.latest.popleft()] -= 1
        self.latest.append(layer)
        self.exits[layer] += 1
        drift = self.drift()
        if drift is None or len(self.latest) < DRIFT_MINIMUM:
            return
        if drift > DRIFT_LIMIT and not self.drifted:
            log.warning("the exits that %s takes have drifted from calibration by %.2f", self.policy, drift)
        self.drifted = drift > (DRIFT_LIMIT / 2 if self.drifted else DRIFT_LIMIT)  # hysteresis: warn once

    def drift(self) -> float | None:
        """Total variation distance of the latest exits from those at calibration, if these are known."""
        if not self.calibrated or not self.latest:
            return None
        now = [self.exits[layer] / len(self.latest) for layer in self.layers]
        return sum(abs(a - b) for a, b in zip(now, self.calibrated, strict=True)) / 2

    def is_full_depth(self, prediction: Prediction) -> bool:
        """Whether it is the last exit's own prediction, not one combined over exits."""
        own_logits = type(self.policy.criterion).output is Criterion.output
        return own_logits and prediction.layer == self.layers[-1]

    def compare(self, prediction: Prediction, full: Prediction) -> None:
        differs = self.differ(prediction, full)
        self.all.add(differs)
        if self.by_class and full.label is not None:
            names = tuple(full.probabilities)
            which = class_indices(self.by_class, names).index(names.index(str(full.label)))
            [*self.by_class.values()][which].add(differs)
        if self.certificate and self.certificate.of == "disagreement":
            delta = self.delta / len(self.bounded)
            self.broken |= any(tally.is_above(epsilon, delta) for tally, epsilon in self.bounded)

    def differ(self, prediction: Prediction, full: Prediction) -> bool:
        """As in calibration; in a regression any difference counts unless the certificate has a tolerance."""
        if full.probabilities:
            return prediction.label != full.label
        return not abs(prediction.score - full.score) <= (
            self.certificate.tolerance or 0.0 if self.certificate else 0.0
        )

    def report(self, rung: int) -> RungReport:
        lower, upper = self.all.bounds(self.delta)
        epsilon = self.certificate.epsilon if self.certificate else None
        return RungReport(
            rung=rung,
            policy=str(self.policy),
            examined=self.all.examined,
            disagreed=self.all.differing,
            dropped=self.dropped,
            lower=lower,
            upper=upper,
            by_class={
                name: tally.bounds(self.delta / len(self.by_class)) for name, tally in self.by_class.items()
            },
            epsilon=None if isinstance(epsilon, Mapping) else epsilon,
            verdict=self.verdict(),
            exits=tuple(self.exits[layer] for layer in self.layers),
            drift=self.drift(),
            drifted=self.drifted,
        )

    def verdict(self) -> str | None:
        if not self.certificate:
            return None
        if self.broken:
            return "broken"
        holds = [
            tally.bounds(self.delta / len(self.bounded))[1] <= epsilon for tally, epsilon in self.bounded
        ]
        return "holds" if holds and all(holds) else "open"


class Tally:
    """Predictions examined, and those of them that differ: in all, and in the current block."""

    def __init__(self) -> None:
        self.examined = self.differing = 0
        self.block_examined = self.block_differing = 0
        self.blocks = 1

    def add(self, differs: bool) -> None:
        if self.block_examined == BLOCK:
            self.block_examined = self.block_differing = 0
            self.blocks += 1
        self.examined += 1
        self.differing += differs
        self.block_examined += 1
        self.block_differing += differs

    def bounds(self, delta: float) -> tuple[float, float]:
        return bounds(self.differing, self.examined, delta / 2)

    def is_above(self, epsilon: float, delta: float) -> bool:
        """Whether the share that differs is certainly above epsilon, in all or in the current block.

        Half of delta is for the total, half for the blocks: 1/2 + 1/6 + 1/12 + ... is 1, so that all blocks
        together spend no more than their half.
        """
        block_delta = delta / 2 / (self.blocks * (self.blocks + 1))
        return is_above(epsilon, self.differing, self.examined, delta / 2) or is_above(
            epsilon, self.block_differing, self.block_examined, block_delta
        )
