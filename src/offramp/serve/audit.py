"""Audit: how often each rung's predictions differ from the reference, with bounds valid at any time.

`list_audit` does the same for lists of documents.

The reference is full depth, or the model that the certificate names (see `offramp.retrofits`). A random share of the
predictions is kept and run again when there is time; which are dropped because there is none does not depend on them.
Of each request at most one is kept, so that a client cannot break a certificate with copies of one text.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from offramp.guarantees.confidence_sequence import bounds, is_above
from offramp.guarantees.losses import LOSSES, Reference
from offramp.inference import Prediction
from offramp.policy import Policy
from offramp.policy.ranking import RankRule
from offramp.policy.text import class_indices
from offramp.problems import MULTI_LABEL, REGRESSION, Array
from offramp.rules.base import Rule
from offramp.runtimes import Tokens

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
    """Predictions, or lists, compared with the reference."""
    disagreed: float
    """Those of them that differed; of lists, the sum of the losses."""
    dropped: int
    """Drawn for the audit and never compared, for lack of time."""
    lower: float
    upper: float
    """Bounds on the share of all predictions that differ from the reference, or on the mean loss of a list, valid at
    all times together with confidence 1 - delta."""
    by_class: Mapping[str, tuple[float, float]]
    """The same bounds per class that full depth predicts, if the certificate has a bound for each."""
    epsilon: float | None
    """The certificate's bound, if it is one for all classes."""
    verdict: str | None
    """On the certificate: "holds", "open" or "broken"; None without one."""
    exits: tuple[int, ...]
    """How many of the latest predictions, or documents, came from each exit."""
    drift: float | None
    """Total variation distance of these from the exits at calibration, 0 to 1; None if those are not known."""
    drifted: bool
    """Whether the drift is large enough for a warning."""


Sample = TypeVar("Sample")


class Sampler(Generic[Sample]):
    """Keeps a share of the results of each rung until they are compared, and the account of each. Thread-safe.

    Args:
        rules: the rungs of the ladder.
        layers: the layers of the model's exits.
        share: the share of results to examine.
        delta: the probability, for each rung, that a certificate which holds is ever called broken.
        keep: how many results of a rung may wait to be examined; then the oldest is dropped.
    """

    def __init__(
        self,
        rules: Sequence[Policy] | Sequence[RankRule],
        layers: Sequence[int],
        *,
        share: float = 0.01,
        delta: float = 0.05,
        keep: int = 256,
    ) -> None:
        self.share = share
        self._rungs = [RungAudit(rule, layers, delta) for rule in rules]
        self._samples = [deque[Sample](maxlen=keep) for _ in rules]
        self._random = random.Random()  # seeded by the system: clients must not know which results are kept
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """Results that wait to be examined."""
        return sum(map(len, self._samples))

    def draw(self, rung: int, layers: Iterable[int], results: Iterable[Sample]) -> None:
        """Counts the exits that a request took, and keeps at most one of its results."""
        with self._lock:
            for layer in layers:
                self._rungs[rung].count_exit(layer)
            drawn = [result for result in results if self._random.random() < self.share]
            if drawn:
                samples = self._samples[rung]
                self._rungs[rung].dropped += len(samples) == samples.maxlen
                samples.append(self._random.choice(drawn))

    def take(self) -> tuple[int, Sample] | None:
        """A kept result, of the rung with the fewest examined."""
        with self._lock:
            rungs = [rung for rung, samples in enumerate(self._samples) if samples]
            if not rungs:
                return None
            rung = min(rungs, key=lambda rung: self._rungs[rung].all.examined)
            return rung, self._samples[rung].popleft()

    def record(self, rung: int, comparison: Callable[["RungAudit"], None]) -> int | None:
        """Adds a comparison to the record of a rung. Returns the rung if this breaks its certificate."""
        audited = self._rungs[rung]
        with self._lock:
            was_broken = audited.broken
            comparison(audited)
            return rung if audited.broken and not was_broken else None

    def has_reference(self, rung: int) -> bool:
        """Whether the rung's certificate names another model, rather than full depth."""
        certificate = self._rungs[rung].certificate
        return certificate is not None and bool(certificate.reference)

    def reports(self) -> list[RungReport]:
        with self._lock:
            return [audited.report(rung) for rung, audited in enumerate(self._rungs)]


class Audit(Sampler[tuple[Tokens, Prediction]]):
    """Audits the predictions that policies make."""

    def offer(self, rung: int, tokens: Sequence[Tokens], predictions: Sequence[Prediction]) -> None:
        """Counts the predictions of a request, made by this rung's policy alone, and maybe keeps one."""
        layers = [prediction.layer for prediction in predictions]
        self.draw(rung, layers, zip(tokens, predictions, strict=True))

    def examine(
        self,
        full_depth: Callable[[Tokens], Prediction],
        original: Callable[[Tokens], Prediction] | None = None,
    ) -> int | None:
        """Compares one kept prediction. Returns the rung if this breaks its certificate. `original` is the model that
        certificates name, if that is not full depth."""
        taken = self.take()
        if taken is None:
            return None
        rung, (tokens, prediction) = taken
        audited = self._rungs[rung]
        if original is not None and self.has_reference(rung):
            reference = original(tokens)
        else:
            reference = prediction if audited.is_full_depth(prediction) else full_depth(tokens)
        return self.record(rung, lambda account: account.compare(prediction, reference))


class RungAudit:
    """The account of one rung: a policy, or a rank rule."""

    def __init__(self, rule: Policy | RankRule, layers: Sequence[int], delta: float) -> None:
        self.rule = rule
        self.layers = tuple(layers)
        self.delta = delta
        self.certificate = rule.certificate
        conditions = rule.certificate and rule.certificate.conditions
        exits = conditions.exits if conditions else ()
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
        self.refutable = False
        """Whether the audit can prove the certificate wrong."""
        if rule.certificate is None:
            return
        epsilon = rule.certificate.epsilon
        self.refutable = not rule.certificate.loss.needs_labels
        if isinstance(epsilon, Mapping):
            if self.refutable:
                self.by_class = {name: Tally() for name in epsilon}
                self.bounded = [*zip(self.by_class.values(), epsilon.values(), strict=True)]
        elif self.refutable or rule.certificate.tolerance is None:
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
            log.warning("the exits that %s takes have drifted from calibration by %.2f", self.rule, drift)
        self.drifted = drift > (DRIFT_LIMIT / 2 if self.drifted else DRIFT_LIMIT)  # hysteresis: warn once

    def drift(self) -> float | None:
        """Total variation distance of the latest exits from those at calibration, if these are known."""
        if not self.calibrated or not self.latest:
            return None
        now = [self.exits[layer] / len(self.latest) for layer in self.layers]
        return sum(abs(a - b) for a, b in zip(now, self.calibrated, strict=True)) / 2

    def is_full_depth(self, prediction: Prediction) -> bool:
        """Whether it is the last exit's own prediction, not one combined over exits."""
        own_logits = isinstance(self.rule, Policy) and type(self.rule.rule).output is Rule.output
        return own_logits and prediction.layer == self.layers[-1]

    def compare(self, prediction: Prediction, full: Prediction) -> None:
        differs = self.differ(prediction, full)
        if self.by_class and full.label is not None:
            names = tuple(full.probabilities)
            which = class_indices(self.by_class, names).index(names.index(str(full.label)))
            [*self.by_class.values()][which].add(differs)
        self.add(differs)

    def add(self, loss: float) -> None:
        """Counts a loss from 0 to 1, and checks the certificate."""
        self.all.add(loss)
        if self.refutable:
            delta = self.delta / len(self.bounded)
            self.broken |= any(tally.is_above(epsilon, delta) for tally, epsilon in self.bounded)

    def differ(self, prediction: Prediction, full: Prediction) -> bool:
        """As in calibration; in a regression any difference counts unless the certificate has a tolerance."""
        problem = MULTI_LABEL if full.probabilities else REGRESSION
        tolerance = self.certificate.tolerance if self.certificate else None
        reference = Reference(outcome(full, full), problem=problem, tolerance=tolerance)
        return bool(LOSSES["changed"].values(outcome(prediction, full), reference)[0])

    def report(self, rung: int) -> RungReport:
        lower, upper = self.all.bounds(self.delta)
        epsilon = self.certificate.epsilon if self.certificate else None
        return RungReport(
            rung=rung,
            policy=str(self.rule),
            examined=self.all.examined,
            disagreed=self.all.lost,
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


def outcome(prediction: Prediction, full: Prediction) -> Array:
    """(1,) the number of a regression, or (1, labels) whether each label was predicted."""
    if not full.probabilities:
        return np.array([prediction.score])
    labels = (prediction.label,) if isinstance(prediction.label, str) else prediction.label or ()
    return np.array([[name in labels for name in full.probabilities]])


class Tally:
    """Results examined, and the sum of their losses, 1 for a prediction that differs: in all, and in the current
    block."""

    def __init__(self) -> None:
        self.examined = self.block_examined = 0
        self.lost = self.block_lost = 0.0
        self.blocks = 1

    def add(self, loss: float) -> None:
        if self.block_examined == BLOCK:
            self.block_examined, self.block_lost = 0, 0.0
            self.blocks += 1
        self.examined += 1
        self.lost += loss
        self.block_examined += 1
        self.block_lost += loss

    def bounds(self, delta: float) -> tuple[float, float]:
        return bounds(self.lost, self.examined, delta / 2)

    def is_above(self, epsilon: float, delta: float) -> bool:
        """Whether the mean loss is certainly above epsilon, in all or in the current block.

        Half of delta is for the total, half for the blocks: 1/2 + 1/6 + 1/12 + ... is 1, so that all blocks
        together spend no more than their half.
        """
        block_delta = delta / 2 / (self.blocks * (self.blocks + 1))
        return is_above(epsilon, self.lost, self.examined, delta / 2) or is_above(
            epsilon, self.block_lost, self.block_examined, block_delta
        )
