"""Audit: what each rung loses against the reference, with bounds valid at any time.

Its unit is an example: a text, whose prediction or spans may differ, or a query with its documents, which may lose
some of its best. `Audit` keeps the examples and the accounts, `Auditor` runs the reference when there is time.

The reference is full depth, or the model that the certificate names (see `offramp.retrofits`). A random share of the
predictions is kept and run again when there is time; which are dropped because there is none does not depend on them.
Of each request at most one is kept, so that a client cannot break a certificate with copies of one text.
A text counts once within an hour, so neither can one who sends it again and again. A certificate is broken once more
is proven to be lost than it allows: the data have changed since calibration. Its rung is no longer used, but what it
would have answered is compared from then on; once that is proven to be within what is allowed, it is used again.
"""

import json
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from offramp.files import digest
from offramp.inference.classifier import predictions as predictions_of
from offramp.inference.runner import NEVER, Runner
from offramp.inference.tagger import tagged_windows
from offramp.lists import Lists
from offramp.policy import Policy
from offramp.serve.account import ALL, Account, Comparison, KeptAccount, checks_of, losses_of
from offramp.serve.ladder import FULL_DEPTH, Ladder, top_k_of
from offramp.serve.logs import RequestTrace
from offramp.serve.queue import Example

KEPT_TEXTS = 256
"""How many texts of a rung wait to be examined."""
KEPT_LISTS = 16
"""How many lists; long ones take memory."""
BUSY_SHARE = 0.05
"""The share of the time that the audit may take while requests wait."""
MOST_CREDIT = 1.0
"""Seconds of that time that may be saved up."""
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
    since: str
    """When this account began, in ISO 8601; empty if that was the first."""
    by_bound: Mapping[str, tuple[float, float]]
    """The same for each of the certificate's bounds, by its risk and group, if there are several."""
    epsilon: float | None
    """The certificate's bound, if it is one for all classes."""
    verdict: str | None
    """On the certificate: "holds", "open" or "broken"; None without one."""
    reason: str
    """Why it is broken. All counts are then of what the policy would have answered since."""
    exits: tuple[int, ...]
    """How many of the latest predictions, or documents, came from each exit."""
    drift: float | None
    """Total variation distance of these from the exits at calibration, 0 to 1; None if those are not known."""
    drifted: bool
    """Whether the drift is large enough for a warning."""


@dataclass(frozen=True)
class Sample:
    """What is compared: an example with its predictions."""

    example: Example
    predictions: Sequence[Any] = ()
    """One, or one for each document of a list; empty if the policy has not run, because it may not be used."""
    trace_context: RequestTrace | None = None
    """The trace of its request."""

    @cached_property
    def key(self) -> str:
        rows = [[*map(int, row)] for part in self.example.rows for row in (part.ids, part.types or ())]
        return digest([json.dumps(rows).encode()])


Run = Callable[[Example, Policy], Generator[None, None, list[Any]]]
"""Runs a policy. It may pause while it runs documents or windows, so that other work can be done; returns the
predictions."""


class Audit:
    """Keeps a share of the examples of each rung until they are compared, and the account of each. Thread-safe.

    Args:
        policies: the rungs of the ladder.
        layers: the layers of the model's exits.
        share: the share of examples to examine.
        delta: the probability that any certificate which holds is ever called broken; the rungs share it.
        keep: how many examples of a rung may wait to be examined; then the oldest is dropped.
        folder: where the accounts are kept, by default nowhere.
        model: the fingerprint of the model, to which accounts belong.
        warn_only: only log that a certificate proves wrong, and use its rung all the same.
        clock: the time in seconds, the same for all who share the accounts.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        layers: Sequence[int],
        *,
        share: float = 0.01,
        delta: float = 0.05,
        keep: int | None = None,
        folder: Path | None = None,
        model: str = "",
        warn_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.share, self.folder, self.warn_only, self.clock = share, folder, warn_only, clock
        keep = keep or (KEPT_TEXTS if top_k_of(policies[0]) is None else KEPT_LISTS)
        self._rungs = [RungAudit(policy, layers, delta / len(policies), folder, model) for policy in policies]
        self._samples = [deque[Sample](maxlen=keep) for _ in policies]
        self._random = random.Random()  # seeded by the system: clients must not know which examples are kept
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        """Held while accounts change, which may take as long as a file does."""
        self._comparison: Generator[None, None, None] | None = None
        """The one that is under way."""

    @property
    def pending(self) -> int:
        """Examples that wait to be examined, or are being examined."""
        return sum(map(len, self._samples)) + (self._comparison is not None)

    @property
    def broken(self) -> dict[int, str]:
        """The rungs whose certificates proved wrong, with the reasons."""
        return {
            rung: reason for rung, audited in enumerate(self._rungs) if (reason := audited.account.broken)
        }

    def offer(self, rung: int, samples: Sequence[Sample]) -> None:
        """Counts the exits of a request that this rung's policy alone has decided, and keeps at most one example: one
        of its texts, or the whole list. It is kept for the rungs that may not be used, too."""
        with self._lock:
            if rung != FULL_DEPTH:
                for sample in samples:  # exits of a list are not independent
                    self._rungs[rung].count_exit(self._random.choice(sample.predictions).layer)
            drawn = [sample for sample in samples if self._random.random() < self.share]
            if drawn:
                sample = self._random.choice(drawn)
                for other in {rung, *self.broken} - {FULL_DEPTH}:
                    self._keep(other, sample if other == rung else replace(sample, predictions=()))

    def _keep(self, rung: int, sample: Sample) -> None:
        audited, samples = self._rungs[rung], self._samples[rung]
        waits = any(sample.key == other.key for other in samples)
        if not waits and not audited.account.counted(sample.key, self.clock()):
            audited.dropped += len(samples) == samples.maxlen
            samples.append(sample)

    def examine(self, run: Run, original: Run | None = None) -> None:
        """Compares a kept example, until the reference pauses. `run` runs policies on the model that serves,
        `original` on the one that certificates name, if that is another."""
        if self._comparison is None:
            self._comparison = self._compare(run, original)
        try:
            next(self._comparison)
        except StopIteration:
            self._comparison = None
        except Exception:
            self._comparison = None
            raise

    def _compare(self, run: Run, original: Run | None) -> Generator[None, None, None]:
        taken = self._take()
        if taken is None:
            return
        rung, sample = taken
        audited = self._rungs[rung]
        start = time.monotonic()
        if not sample.predictions:
            sample = replace(sample, predictions=(yield from run(sample.example, audited.policy)))
        reference = sample.predictions
        if original is not None and audited.names_reference:
            reference = yield from original(sample.example, NEVER)
        elif not audited.is_full_depth(sample):
            reference = yield from run(sample.example, NEVER)
        with self._lock:
            loss = audited.compare(sample, reference, self.clock())
        if sample.trace_context:
            end, policy = time.monotonic(), str(audited.policy)
            sample.trace_context.add("audit", start, end, policy=policy, rung=rung, loss=loss)
        if self.folder is None:  # no file to wait for
            self.settle()

    def _take(self) -> tuple[int, Sample] | None:
        """A kept sample, of the rung with the fewest examined."""
        with self._lock:
            rungs = [rung for rung, samples in enumerate(self._samples) if samples]
            if not rungs:
                return None
            rung = min(rungs, key=lambda rung: self._rungs[rung].account.tallies[ALL].examined)
            return rung, self._samples[rung].popleft()

    def settle(self) -> None:
        """Enters what was compared into the accounts, with what other workers have entered."""
        with self._settling:
            for audited in self._rungs:
                with self._lock:
                    comparisons, audited.unsettled = audited.unsettled, []
                audited.kept.settle(comparisons)

    def consequence(self, rung: int) -> str:
        """What a broken certificate means for its rung, and how that ends."""
        if self.warn_only:
            return "it is still used, as --audit-warn-only says"
        file = self._rungs[rung].kept.file
        return (
            "it and all rungs below it are not used until new traffic proves that the certificate holds again"
            + (f", or {file} is deleted" if file else "")
        )

    def reports(self) -> list[RungReport]:
        with self._settling, self._lock:
            return [audited.report(rung) for rung, audited in enumerate(self._rungs)]


class Auditor:
    """When an audit runs, and on which models: it forbids rungs whose certificates prove wrong. All of it runs in the
    batcher's worker thread, but not `settle` if the accounts are in files.

    Args:
        audit: of the rungs of `ladder`.
        runner: the model that serves, which is run to full depth.
        original: the model that the certificates name, if that is another. Nothing is compared until it is loaded.
    """

    def __init__(self, audit: Audit, ladder: Ladder, runner: Runner, original: Future[Runner] | None) -> None:
        self.audit, self.ladder, self.runner, self.original = audit, ladder, runner, original
        self.broken: Mapping[int, str] = {}
        """Those of the audit's that the log and the ladder know."""
        self.credit = 0.0
        """Seconds that the audit may still take while requests wait; negative after a long one."""
        self.settle()

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
        self.audit.examine(partial(run_to_the_end, self.runner), original)
        if self.audit.folder is None:
            self.settle()

    def settle(self) -> None:
        """Forbids the rungs that this or another worker has found to be broken, and allows them again."""
        self.audit.settle()
        before, self.broken = self.broken, self.audit.broken
        for rung in before.keys() - self.broken.keys():
            self.ladder.allow(rung)
            log.warning("rung %d (%s) is used again", rung, self.ladder.rungs[rung])
        for rung in self.broken.keys() - before.keys():
            if not self.audit.warn_only:
                self.ladder.forbid(rung)
            log.error(
                "rung %d (%s) loses more than its certificate allows: %s; %s",
                rung,
                self.ladder.rungs[rung],
                self.broken[rung],
                self.audit.consequence(rung),
            )


def run_to_the_end(runner: Runner, example: Example, policy: Policy) -> Generator[None, None, list[Any]]:
    """The predictions for an example, with a pause after each micro-batch of its documents or windows."""
    rows, tags = example.rows, runner.runtime.info.problem.of_tokens
    lists = None if tags else Lists.consecutive([len(rows)], [top_k_of(policy)])
    for latest in runner.engine.steps(rows, policy, lists=lists):
        decision = latest
        if len(rows) > 1:
            yield
    outcomes = tagged_windows(rows, decision) if tags else [*predictions_of(decision, runner.runtime)]
    return example.predictions(outcomes)


class RungAudit:
    """What is known of one rung."""

    def __init__(
        self, policy: Policy, layers: Sequence[int], delta: float, folder: Path | None = None, model: str = ""
    ) -> None:
        self.policy = policy
        self.top_k = top_k_of(policy)
        self.layers = tuple(layers)
        self.certificate = certificate = policy.certificate
        conditions = certificate and certificate.conditions
        exits = conditions.exits if conditions else ()
        self.calibrated = exits if len(exits) == len(self.layers) else None
        """The fraction that took each exit at calibration, if known."""
        self.latest: deque[int] = deque()
        """The layers of the latest predictions."""
        self.exits = Counter[int]()
        """The counts of `latest`."""
        self.drifted = False
        self.dropped = 0
        self.unsettled: list[Comparison] = []
        """Not in the account yet."""
        self.checks = [*checks_of(certificate, "changed" if self.top_k is None else "overlap")]
        record = json.dumps(policy.to_json(), sort_keys=True)
        self.kept = KeptAccount(
            Account(
                {check.name: check.epsilon for check in self.checks if check.epsilon and check.refutable},
                delta,
                [check.name for check in self.checks if check.name != ALL],
            ),
            folder and folder / f"{digest([model.encode(), record.encode()])}.json",
            {"policy": str(policy), "model": model},
        )

    @property
    def account(self) -> Account:
        return self.kept.account

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

    def is_full_depth(self, sample: Sample) -> bool:
        """Whether its predictions are the last exit's own, not made from other exits; unknown of a text in several
        windows, whose layer is that of the deepest."""
        return (
            self.policy.rule.keeps_logits
            and len(sample.predictions) == len(sample.example.rows)
            and all(prediction.layer == self.layers[-1] for prediction in sample.predictions)
        )

    def compare(self, sample: Sample, reference: Sequence[Any], now: float) -> float | None:
        """Notes what an example loses, for the account. The loss, if all examples count."""
        losses = losses_of(self.checks, sample.predictions, reference, self.top_k)
        self.unsettled.append(Comparison(sample.key, losses, round(now)))
        return losses.get(ALL)

    def report(self, rung: int) -> RungReport:
        account, tally, proof = self.account, self.account.tallies[ALL], self.certificate
        lower, upper = tally.bounds(account.delta)
        since = (
            datetime.fromtimestamp(account.since, UTC).isoformat(timespec="seconds") if account.since else ""
        )
        return RungReport(
            rung=rung,
            policy=str(self.policy),
            examined=tally.examined,
            disagreed=tally.lost,
            dropped=self.dropped,
            lower=lower,
            upper=upper,
            since=since,
            by_bound={check.name: account.bounds(check.name) for check in self.checks if check.name != ALL},
            epsilon=proof.epsilon if proof and len(proof.bounds) == 1 and not proof.by else None,
            verdict=self.verdict(),
            reason=account.broken,
            exits=tuple(self.exits[layer] for layer in self.layers),
            drift=self.drift(),
            drifted=self.drifted,
        )

    def verdict(self) -> str | None:
        if not self.certificate:
            return None
        if self.account.broken:
            return "broken"
        checked = [check for check in self.checks if check.epsilon is not None]
        holds = len(checked) == len(self.certificate.bounds) and all(
            self.account.bounds(check.name)[1] <= check.epsilon for check in checked if check.epsilon
        )
        return "holds" if holds else "open"
