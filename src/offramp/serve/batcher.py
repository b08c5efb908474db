"""Batcher: requests of any shape in, replies out, one thread running the model. It knows no HTTP.

`submit` tokenizes in the caller's thread and refuses at once what the queue has no room for. Every accepted request
is answered once, fails, or is cancelled. The worker takes whatever is waiting as soon as it is free, so an idle
server adds no delay, and audits while nothing waits.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf

import numpy as np

from offramp.classifier import Classifier, Prediction
from offramp.classifier.classifier import NEVER
from offramp.classifier.texts import Text, check_texts
from offramp.errors import BadData, BadOption, Draining, OfframpError, Overloaded, RunFailed
from offramp.policy import Policy
from offramp.serve.audit import Audit
from offramp.serve.ladder import FULL_DEPTH, Ladder
from offramp.serve.queue import Limits, Queue, QueuedText, Reply, Request, Ticket, Waiting
from offramp.stages import Tokens

__all__ = ["Batcher", "Limits", "Reply", "Request", "Waiting"]

TEST = "The quick brown fox jumps over the lazy dog."
RETEST = 5.0
"""Seconds after which a model that failed its test is tested again."""
IDLE_STEP = 0.25
"""Seconds after which an idle worker checks whether to step back up the ladder."""
LAST_WINDOW = 20.0
"""Seconds to wait for the running window once the time to drain is over."""
STOPPED = "the server was stopped before this request was answered; send it to another server."
DECAY = 0.9
"""Weight of the past windows against the latest one."""
DEFAULT_RETRY = 1.0
"""Seconds until a retry, as long as no window has been timed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """Exponentially weighted sums over windows."""

    tokens: float = 0.0
    """Padding included, as in the queue."""
    seconds: float = 0.0

    def add(self, window: Sequence[QueuedText], seconds: float) -> "Pace":
        tokens = sum(text.ticket.longest for text in window)
        return Pace(DECAY * self.tokens + tokens, DECAY * self.seconds + seconds)

    def seconds_for(self, tokens: int) -> float:
        return tokens * self.seconds / self.tokens if self.tokens else DEFAULT_RETRY


class Batcher:
    """A classifier with a queue and a worker thread. `audit`, if given, audits the rungs of the ladder."""

    def __init__(
        self, classifier: Classifier, ladder: Ladder, limits: Limits, audit: Audit | None = None
    ) -> None:
        self.classifier = classifier
        self.ladder = ladder
        self.limits = limits
        self.audit = audit
        self._rungs = self._resolve([*ladder.rungs, NEVER])
        self._queue = Queue(limits)
        self._pace = Pace()
        self._draining = False
        self._changed = threading.Condition()  # guards queue, pace and draining
        self._finite = classifier.stages.is_finite()
        if not self._finite:
            log.error("some of the model's weights are NaN or infinite")
        self._test = classifier.tokenizer([TEST])
        self._healthy = self._passes_test()
        self._worker = threading.Thread(target=self._work, name="offramp-worker", daemon=True)
        self._worker.start()

    def submit(self, request: Request) -> Future[Reply]:
        """Queues a request. Raises `Overloaded`, `Draining`, `TooLarge`, `BadData`, `BadOption`, `Incompatible` or
        `BadPolicy` at once; a run that fails later gives the future a `RunFailed`.

        Cancelling the future removes those of its texts that have not begun from the queue.
        """
        now = time.monotonic()
        texts = check_request(request)
        with self._changed:
            self._check_room(len(texts), tokens=len(texts))  # a lower bound, before tokenizing
        ticket = Ticket(
            self.classifier.tokenizer(texts, whole=not request.truncate),
            rungs=self._policies(request.policy, request.max_layer),
            names_policy=request.policy is not None,
            limited=request.max_layer is not None or request.deadline_ms is not None,
            trace=request.trace,
            submitted=now,
            until=inf if request.deadline_ms is None else now + request.deadline_ms / 1000,
        )
        ticket.future.add_done_callback(lambda _: self._remove_cancelled(ticket))
        with self._changed:
            self._check_room(ticket.left, ticket.left * ticket.longest)
            self._queue.add(ticket)
            self._changed.notify()
        return ticket.future

    def drain(self, seconds: float) -> None:
        """Refuses new requests, and finishes the accepted ones for at most this long; then they fail with `Draining`.

        The running window is waited for even then: a process that ends with a thread inside the model aborts. The
        batcher cannot be used afterwards.
        """
        with self._changed:
            self._draining = True
            self._changed.notify()
        self._worker.join(seconds)
        with self._changed:
            late = [*self._queue.tickets]
        for ticket in late:
            self._fail(ticket, Draining(STOPPED))
        self._worker.join(LAST_WINDOW)

    @property
    def waiting(self) -> Waiting:
        with self._changed:
            return Waiting(self._queue.items, self._queue.tokens)

    @property
    def healthy(self) -> bool:
        """Whether the weights are finite and a test text gets finite logits at every exit. Tested at the start and
        after every failure."""
        return self._healthy and self._worker.is_alive()

    def _policies(self, named: Policy | None, max_layer: int | None) -> tuple[Policy, ...]:
        if named is None and max_layer is None:
            return self._rungs
        return self._resolve(self._rungs if named is None else [named], max_layer)

    def _resolve(self, policies: Iterable[Policy], max_layer: int | None = None) -> tuple[Policy, ...]:
        return tuple(self.classifier.resolve_policy(policy, max_layer) for policy in policies)

    def _check_room(self, items: int, tokens: int) -> None:
        if self._draining:
            raise Draining("the server is stopping; send the request to another server.")
        if not self._worker.is_alive():
            raise RunFailed("the server's worker thread has died, see the log; restart the server.")
        if not self._queue.has_room(items, tokens):
            seconds = self._pace.seconds_for(self._queue.tokens)
            raise Overloaded(f"the queue is full; retry in {seconds:.1f} s.", seconds)

    def _remove_cancelled(self, ticket: Ticket) -> None:
        if ticket.future.cancelled():
            with self._changed:
                self._queue.remove(ticket)

    def _fail(self, ticket: Ticket, error: OfframpError) -> None:
        if self._close(ticket):
            ticket.future.set_exception(error)

    def _close(self, ticket: Ticket) -> bool:
        """Removes a ticket. True if the caller must resolve its future: it is neither resolved nor cancelled."""
        with self._changed:
            self._queue.remove(ticket)
            unresolved = ticket.open and ticket.future.set_running_or_notify_cancel()
            ticket.open = False
            return unresolved

    # From here on everything runs in the worker thread.

    def _work(self) -> None:
        while True:
            with self._changed:
                has_work = self._changed.wait_for(self._has_work, self._wait_limit())
                now = time.monotonic()
                window = self._queue.take(self.ladder.step(self._queue.load, now), now)
            if window:
                self._run_window(window)
            elif self._draining:
                return
            elif has_work:
                self._audit_one()
            elif not self._healthy:
                self._healthy = self._passes_test()

    def _has_work(self) -> bool:
        return bool(self._queue.tickets or self._draining or (self.audit and self.audit.pending))

    def _wait_limit(self) -> float | None:
        if not self._healthy:
            return RETEST
        return IDLE_STEP if self.ladder.current > 0 else None

    def _run_window(self, window: list[QueuedText]) -> None:
        start = time.monotonic()
        batches: dict[tuple[str, bool, bool], list[QueuedText]] = {}
        for text in window:
            batches.setdefault(text.ticket.batch_key, []).append(text)
        for texts in batches.values():
            self._run(texts)
        with self._changed:
            self._pace = self._pace.add(window, time.monotonic() - start)

    def _run(self, texts: list[QueuedText]) -> None:
        """Runs texts that share a batch key."""
        policy, trace = texts[0].ticket.policy, texts[0].ticket.trace
        until = np.array([text.ticket.until for text in texts])
        try:
            predictions = [
                *self.classifier.predict_tokens([text.tokens for text in texts], policy, until, trace)
            ]
            for text, prediction in zip(texts, predictions, strict=True):
                self._finish(text, prediction)
        except Exception as error:
            log.exception("the model failed on a window of %d texts", len(texts))
            for text in texts:
                failure = RunFailed("the model failed on the batch that this request was in; send it again.")
                failure.__cause__ = error
                self._fail(text.ticket, failure)
            self._healthy = self._passes_test()
            return
        if not all(prediction.finite for prediction in predictions):
            self._healthy = self._passes_test()

    def _finish(self, text: QueuedText, prediction: Prediction) -> None:
        ticket = text.ticket
        ticket.predictions[text.row] = prediction
        if self.audit and ticket.rung not in (None, FULL_DEPTH) and not ticket.limited:
            self.audit.offer(ticket.rung, text.tokens, prediction)
        if len(ticket.predictions) == len(ticket.tokens) and self._close(ticket):
            ticket.future.set_result(ticket.reply())

    def _audit_one(self) -> None:
        """Runs one text to full depth; no more, so that new requests do not wait long."""
        assert self.audit is not None
        try:
            broken = self.audit.examine(self._full_depth)
        except Exception:
            log.exception("the model failed on a text of the audit")
            self._healthy = self._passes_test()
            return
        if broken is not None:
            self.ladder.forbid(broken)
            log.error(
                "rung %d (%s) differs from full depth more often than its certificate allows; "
                "it and all rungs below it are no longer used",
                broken,
                self.ladder.rungs[broken],
            )

    def _full_depth(self, tokens: Tokens) -> Prediction:
        return next(self.classifier.predict_tokens([tokens], NEVER))

    def _passes_test(self) -> bool:
        if not self._finite:
            return False
        try:
            prediction = next(self.classifier.predict_tokens(self._test, NEVER, trace=True))
        except Exception:
            log.exception("the model failed on a test")
            return False
        return all(exit.finite for exit in prediction.exits)


def check_request(request: Request) -> list[Text]:
    """The request's texts, if they and its options are valid."""
    if request.trace and request.deadline_ms is not None:
        raise BadOption("a trace runs all layers, so it cannot have a deadline; drop one of the two.")
    if isinstance(request.texts, str):
        raise BadData("texts must be a list, even for a single text.")
    texts = [*check_texts(request.texts)]
    if not texts:
        raise BadOption("no texts; give at least one.")
    return texts
