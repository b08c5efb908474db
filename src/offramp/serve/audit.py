"""Audit: what each rung loses against the reference, with bounds valid at any time.

Its unit is an example: a text, whose prediction may differ, or a query with its documents, which may lose some of its
best. `Audit` keeps the examples and the accounts, `Auditor` runs the reference when there is time.

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
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np

from offramp.guarantees.confidence_sequence import bounds, is_above
from offramp.guarantees.losses import LOSSES, Reference
from offramp.inference import Prediction
from offramp.inference.prediction import predictions as predictions_of
from offramp.inference.runner import NEVER, Runner
from offramp.lists import Lists
from offramp.policy import Policy
from offramp.policy.text import class_indices
from offramp.problems import MULTI_LABEL, REGRESSION, Array
from offramp.rules.rank import relevance
from offramp.runtimes import Tokens
from offramp.serve.ladder import Ladder, top_k_of
from offramp.serve.telemetry import RequestTrace

KEPT_TEXTS = 256
"""How many texts of a rung wait to be examined."""
KEPT_LISTS = 16
"""How many lists; long ones take memory."""
BUSY_SHARE = 0.05
"""The share of the time that the audit may take while requests wait."""
MOST_CREDIT = 1.0
"""Seconds of that time that may be saved up."""
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


@dataclass(frozen=True)
class Example:
    """What is compared: a text, or a query with its documents."""

    tokens: Sequence[Tokens]
    """Those of the text, or of each document."""
    predictions: Sequence[Prediction]
    trace_context: RequestTrace | None = None
    """Of its request."""


Run = Callable[[Sequence[Tokens]], Generator[None, None, list[Prediction]]]
"""Runs a reference. It may pause while it runs documents, so that other work can be done; returns the predictions."""


class Audit:
    """Keeps a share of the examples of each rung until they are compared, and the account of each. Thread-safe.

    Args:
        policies: the rungs of the ladder.
        layers: the layers of the model's exits.
        share: the share of examples to examine.
        delta: the probability, for each rung, that a certificate which holds is ever called broken.
        keep: how many examples of a rung may wait to be examined; then the oldest is dropped.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        layers: Sequence[int],
        *,
        share: float = 0.01,
        delta: float = 0.05,
        keep: int | None = None,
    ) -> None:
        self.share = share
        keep = keep or (KEPT_TEXTS if top_k_of(policies[0]) is None else KEPT_LISTS)
        self._rungs = [RungAudit(policy, layers, delta) for policy in policies]
        self._samples = [deque[Example](maxlen=keep) for _ in policies]
        self._random = random.Random()  # seeded by the system: clients must not know which examples are kept
        self._lock = threading.Lock()
        self._comparison: Generator[None, None, int | None] | None = None
        """The one that is under way."""

    @property
    def pending(self) -> int:
        """Examples that wait to be examined, or are being examined."""
        return sum(map(len, self._samples)) + (self._comparison is not None)

    def offer(
        self,
        rung: int,
        tokens: Sequence[Tokens],
        predictions: Sequence[Prediction],
        trace_context: RequestTrace | None = None,
    ) -> None:
        """Counts the exits of a request that this rung's policy alone has decided, and keeps at most one example: one
        of its texts, or the whole list."""
        audited = self._rungs[rung]
        with self._lock:
            if audited.top_k is None:
                counted = predictions
                rows = zip(tokens, predictions, strict=True)
                examples = [Example([text], [prediction], trace_context) for text, prediction in rows]
            else:
                counted = [self._random.choice(predictions)]  # exits of a list are not independent
                examples = [Example(tokens, predictions, trace_context)]
            for prediction in counted:
                audited.count_exit(prediction.layer)
            drawn = [example for example in examples if self._random.random() < self.share]
            if drawn:
                samples = self._samples[rung]
                audited.dropped += len(samples) == samples.maxlen
                samples.append(self._random.choice(drawn))

    def examine(self, full_depth: Run, original: Run | None = None) -> int | None:
        """Compares a kept example, until the reference pauses. Returns the rung if this breaks its certificate.
        `original` is the model that certificates name, if that is not full depth."""
        if self._comparison is None:
            self._comparison = self._compare(full_depth, original)
        try:
            next(self._comparison)
        except StopIteration as end:
            self._comparison = None
            broken: int | None = end.value
            return broken
        except Exception:
            self._comparison = None
            raise
        return None

    def _compare(self, full_depth: Run, original: Run | None) -> Generator[None, None, int | None]:
        taken = self._take()
        if taken is None:
            return None
        rung, example = taken
        audited = self._rungs[rung]
        reference, start = example.predictions, time.monotonic()
        if original is not None and audited.names_reference:
            reference = yield from original(example.tokens)
        elif not audited.is_full_depth(example):
            reference = yield from full_depth(example.tokens)
        with self._lock:
            was_broken = audited.broken
            loss = audited.compare(example.predictions, reference)
            if example.trace_context:
                found = {"policy": str(audited.policy), "rung": rung, "loss": loss}
                example.trace_context.add("audit", start, time.monotonic(), **found)
            return rung if audited.broken and not was_broken else None

    def _take(self) -> tuple[int, Example] | None:
        """A kept example, of the rung with the fewest examined."""
        with self._lock:
            rungs = [rung for rung, samples in enumerate(self._samples) if samples]
            if not rungs:
                return None
            rung = min(rungs, key=lambda rung: self._rungs[rung].all.examined)
            return rung, self._samples[rung].popleft()

    def reports(self) -> list[RungReport]:
        with self._lock:
            return [audited.report(rung) for rung, audited in enumerate(self._rungs)]


class Auditor:
    """When an audit runs, and on which models: it forbids rungs whose certificates prove wrong. All of it runs in the
    batcher's worker thread.

    Args:
        audit: of the rungs of `ladder`.
        runner: the model that serves, which is run to full depth.
        original: the model that the certificates name, if that is another. Nothing is compared until it is loaded.
    """

    def __init__(self, audit: Audit, ladder: Ladder, runner: Runner, original: Future[Runner] | None) -> None:
        self.audit, self.ladder, self.runner, self.original = audit, ladder, runner, original
        self.credit = 0.0
        """Seconds that the audit may still take while requests wait; negative after a long one."""

    @property
    def is_loading(self) -> bool:
        return self.original is not None and not self.original.done()

    @property
    def has_work(self) -> bool:
        return not self.is_loading and self.audit.pending > 0

    def run_while_busy(self, seconds: float) -> None:
        """Runs one step after a window that took `seconds`, if there is time left. Lax rungs are used only while
        requests wait, so that is when they must be audited."""
        self.credit = min(self.credit + BUSY_SHARE * seconds, MOST_CREDIT)
        if self.credit > 0 and self.has_work:
            start = time.monotonic()
            try:
                self.run_step()
            finally:
                self.credit -= time.monotonic() - start

    def run_step(self) -> None:
        """Runs one text, or one micro-batch of a list, through the reference; no more, so that new requests do not
        wait long."""
        original = partial(run_to_the_end, self.original.result()) if self.original else None
        broken = self.audit.examine(partial(run_to_the_end, self.runner), original)
        if broken is not None:
            self.ladder.forbid(broken)
            log.error(
                "rung %d (%s) loses more than its certificate allows; "
                "it and all rungs below it are no longer used",
                broken,
                self.ladder.rungs[broken],
            )


def run_to_the_end(runner: Runner, tokens: Sequence[Tokens]) -> Generator[None, None, list[Prediction]]:
    """The predictions for a text, or for the documents of a list, with a pause after each of their micro-batches."""
    for latest in runner.engine.steps(tokens, NEVER, lists=Lists.consecutive([len(tokens)])):
        decision = latest
        if len(tokens) > 1:
            yield
    return [*predictions_of(decision, runner.runtime)]


class RungAudit:
    """The account of one rung."""

    def __init__(self, policy: Policy, layers: Sequence[int], delta: float) -> None:
        self.policy = policy
        self.top_k = top_k_of(policy)
        self.layers = tuple(layers)
        self.delta = delta
        self.certificate = certificate = policy.certificate
        conditions = certificate and certificate.conditions
        exits = conditions.exits if conditions else ()
        self.calibrated = exits if len(exits) == len(self.layers) else None
        """The fraction that took each exit at calibration, if known."""
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
        if certificate is None:
            return
        epsilon: Mapping[str, float] | float = certificate.epsilon
        if certificate.by:
            epsilon = {bound.group: bound.epsilon for bound in certificate.bounds}
        self.refutable = not certificate.loss.needs_labels
        if isinstance(epsilon, Mapping):
            if self.refutable:
                self.by_class = {name: Tally() for name in epsilon}
                self.bounded = [*zip(self.by_class.values(), epsilon.values(), strict=True)]
        elif self.refutable or certificate.tolerance is None:
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

    @property
    def names_reference(self) -> bool:
        """Whether the certificate names another model, rather than full depth."""
        return self.certificate is not None and bool(self.certificate.reference)

    def is_full_depth(self, example: Example) -> bool:
        """Whether its predictions are the last exit's own, not made from other exits."""
        return self.policy.rule.keeps_logits and all(
            prediction.layer == self.layers[-1] for prediction in example.predictions
        )

    def compare(self, predictions: Sequence[Prediction], reference: Sequence[Prediction]) -> float:
        """Counts the loss of an example, and checks the certificate; returns the loss."""
        loss = self.loss(predictions, reference)
        if self.by_class and (label := reference[0].label) is not None:
            names = tuple(reference[0].probabilities)
            which = class_indices(self.by_class, names).index(names.index(str(label)))
            [*self.by_class.values()][which].add(loss)
        self.all.add(loss)
        if self.refutable:
            delta = self.delta / len(self.bounded)
            self.broken |= any(tally.is_above(epsilon, delta) for tally, epsilon in self.bounded)
        return loss

    def loss(self, predictions: Sequence[Prediction], reference: Sequence[Prediction]) -> float:
        """As in calibration. That of a certificate which needs labels is bounded by the predictions that change; in a
        regression any difference counts unless the certificate has a tolerance."""
        if self.top_k is not None:
            risk = self.certificate.risk if self.certificate else "overlap"
            lists = Lists.consecutive([len(reference)])
            order, full = (lists.ranks(scores_of(each)) for each in (predictions, reference))
            truth = Reference(full, sizes=lists.sizes, top_k=self.top_k)
        else:
            risk, full = "changed", outcome(reference[0], reference[0])
            order = outcome(predictions[0], reference[0])
            problem = MULTI_LABEL if full.ndim > 1 else REGRESSION
            tolerance = self.certificate.tolerance if self.certificate else None
            truth = Reference(full, problem=problem, tolerance=tolerance)
        return float(LOSSES[risk].values(order, truth)[0])

    def report(self, rung: int) -> RungReport:
        lower, upper = self.all.bounds(self.delta)
        proof = self.certificate
        return RungReport(
            rung=rung,
            policy=str(self.policy),
            examined=self.all.examined,
            disagreed=self.all.lost,
            dropped=self.dropped,
            lower=lower,
            upper=upper,
            by_class={
                name: tally.bounds(self.delta / len(self.by_class)) for name, tally in self.by_class.items()
            },
            epsilon=None if proof is None or proof.by else proof.epsilon,
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
    """(1,) the number of a regression, or (1, labels) whether each label was predicted or decided to be there."""
    decided = prediction.label if prediction.decision is None else prediction.decision
    if isinstance(full.decision, bool):
        return np.array([[decided is True]])
    if not full.probabilities:
        return np.array([prediction.score])
    labels = decided if isinstance(decided, tuple) else (decided,)
    return np.array([[name in labels for name in full.probabilities]])


def scores_of(predictions: Sequence[Prediction]) -> Array:
    """(documents,) by which they are ranked."""
    return relevance(np.array([prediction.logits for prediction in predictions]))


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
