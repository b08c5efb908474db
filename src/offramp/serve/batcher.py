"""Batcher: requests of any shape in, replies out, one thread running the model. It knows no HTTP.

`submit` tokenizes in the caller's thread and refuses at once what there is no room for. What it accepts is answered
once, fails, or is cancelled. The worker takes what waits as soon as it is free, so that nobody waits while it is
idle, and audits when nobody waits.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import numpy as np

from offramp.classifier import Classifier, Prediction
from offramp.classifier.classifier import NEVER
from offramp.classifier.texts import Text, check_texts
from offramp.errors import BadData, BadOption, Draining, OfframpError, Overloaded, RunFailed
from offramp.policy import Policy
from offramp.serve.audit import Audit
from offramp.serve.ladder import FULL_DEPTH, Ladder
from offramp.serve.queue import Item, Limits, Queue, Reply, Request, Ticket, Waiting
from offramp.stages import Tokens

__all__ = ["Batcher", "Counters", "Limits", "Reply", "Request", "Waiting"]

TEST = "The quick brown fox jumps over the lazy dog."
RETEST = 5.0
"""Seconds after which a model that failed its test is tested again."""
LAST_WINDOW = 20.0
"""Seconds that may pass until the window that runs when draining ends is done."""
STOPPED = "the server was stopped before this request was answered; send it to another one."
FADING = 0.9
"""What one window leaves of the weight of those before it."""
UNKNOWN = 1.0
"""Seconds to come back after, as long as no pace is known."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counters:
    """Since the start, of requests where nothing else is said."""

    accepted: int
    answered: int
    failed: int
    cancelled: int
    overloaded: int
    """Refused because there was no room."""
    items: int
    """Texts answered."""
    tokens: int
    """Of the texts answered, without padding."""
    not_finite: int
    """Texts that met NaN or infinity on their way."""
    windows: int
    layers: Mapping[int, int]
    """Texts answered by the exit of each layer."""
    rungs: Mapping[int, int]
    """Texts answered by each rung of the ladder."""


@dataclass(frozen=True)
class Pace:
    """What the latest windows did, older ones fading."""

    items: float = 0.0
    tokens: float = 0.0
    """Padding included, as waiting ones are counted."""
    seconds: float = 0.0

    def after(self, window: Sequence[Item], seconds: float) -> "Pace":
        return Pace(
            items=FADING * self.items + len(window),
            tokens=FADING * self.tokens + sum(item.ticket.longest for item in window),
            seconds=FADING * self.seconds + seconds,
        )


class Batcher:
    """A classifier at work. An audit, if there is one, is of the ladder's rungs."""

    def __init__(
        self, classifier: Classifier, ladder: Ladder, limits: Limits, audit: Audit | None = None
    ) -> None:
        self.classifier = classifier
        self.ladder = ladder
        self.limits = limits
        self.audit = audit
        self._rungs = self._fitting([*ladder.rungs, NEVER])
        self._queue = Queue(limits)
        self._pace = Pace()
        self._counts: Counter[str] = Counter()
        self._layers: Counter[int] = Counter()
        self._rung_counts: Counter[int] = Counter()
        self._draining = False
        self._changed = threading.Condition()  # around all of the above
        self._finite = classifier.stages.is_finite()
        if not self._finite:
            log.error("some of the model's weights are NaN or infinite")
        self._test = classifier.tokenizer([TEST])
        self._healthy = self._passes_test()
        self._worker = threading.Thread(target=self._work, name="offramp-worker", daemon=True)
        self._worker.start()

    def submit(self, request: Request) -> Future[Reply]:
        """A place in the queue; or at once `Overloaded`, `Draining`, `TooLarge`, `BadData`, `BadData` and whatever
        else is wrong with a request (`BadOption`, `Incompatible`, `BadPolicy`).

        Cancelling the future frees the places of its texts that have not begun. A failed run raises `RunFailed`.
        """
        now = time.monotonic()
        texts = check_request(request)
        with self._changed:
            self._check_room(len(texts), tokens=len(texts))  # at least; before any work is done for it
        ticket = Ticket(
            self.classifier.tokenizer(texts, whole=not request.truncate),
            rungs=self._policies(request.policy, request.max_layer),
            named=request.policy is not None,
            limited=request.max_layer is not None or request.deadline_ms is not None,
            trace=request.trace,
            submitted=now,
            until=inf if request.deadline_ms is None else now + request.deadline_ms / 1000,
        )
        ticket.future.add_done_callback(lambda _: self._forget(ticket))
        with self._changed:
            self._check_room(ticket.left, ticket.left * ticket.longest)
            self._queue.add(ticket)
            self._counts["accepted"] += 1
            self._changed.notify()
        return ticket.future

    def drain(self, seconds: float) -> bool:
        """Accept nothing more, and finish what was accepted; whether it was done in time.

        What has not begun by then fails with `Draining`, and what runs is waited for: a thread that is inside the
        model when the process ends aborts it. The batcher is of no more use afterwards.
        """
        with self._changed:
            self._draining = True
            self._changed.notify()
        self._worker.join(seconds)
        in_time = not self._worker.is_alive()
        with self._changed:
            late = [*self._queue.tickets]
        for ticket in late:
            self._fail(ticket, Draining(STOPPED))
        self._worker.join(LAST_WINDOW)
        return in_time

    @property
    def waiting(self) -> Waiting:
        with self._changed:
            return Waiting(self._queue.items, self._queue.tokens)

    @property
    def rung(self) -> int:
        """Of the ladder, now."""
        with self._changed:
            return self.ladder.rung(self._queue.load, time.monotonic())

    @property
    def healthy(self) -> bool:
        """Whether weights are finite and a text of ours got finite answers from all exits, at the start and after
        the last trouble."""
        return self._healthy and self._worker.is_alive()

    @property
    def counters(self) -> Counters:
        with self._changed:
            counts: dict[str, Any] = {each.name: self._counts[each.name] for each in fields(Counters)}
            return Counters(**counts | {"layers": dict(self._layers), "rungs": dict(self._rung_counts)})

    def _policies(self, named: Policy | None, max_layer: int | None) -> tuple[Policy, ...]:
        if named is None and max_layer is None:
            return self._rungs
        return self._fitting(self._rungs if named is None else [named], max_layer)

    def _fitting(self, policies: Iterable[Policy], max_layer: int | None = None) -> tuple[Policy, ...]:
        return tuple(self.classifier.resolve_policy(policy, max_layer) for policy in policies)

    def _check_room(self, items: int, tokens: int) -> None:
        if self._draining:
            raise Draining("the server is being stopped; send the request to another one.")
        if not self._worker.is_alive():
            raise RunFailed("the server's worker is gone, its log says how; restart the server.")
        if not self._queue.has_room(items, tokens):
            self._counts["overloaded"] += 1
            pace = self._pace
            seconds = self._queue.tokens * pace.seconds / pace.tokens if pace.seconds else UNKNOWN
            raise Overloaded(
                f"{self._queue.items} texts wait, which takes about {seconds:.1f} s; come back then.", seconds
            )

    def _forget(self, ticket: Ticket) -> None:
        """What a cancelled request still has in the queue."""
        if ticket.future.cancelled():
            with self._changed:
                self._counts["cancelled"] += 1
                self._queue.remove(ticket)

    def _fail(self, ticket: Ticket, error: OfframpError) -> None:
        if self._close(ticket, "failed"):
            ticket.future.set_exception(error)

    def _close(self, ticket: Ticket, outcome: str) -> bool:
        """Takes a ticket out. Whether it is the caller's to answer: nobody else will, nor has it been cancelled."""
        with self._changed:
            self._queue.remove(ticket)
            mine = ticket.open and ticket.future.set_running_or_notify_cancel()
            ticket.open = False
            self._counts[outcome] += mine
            return mine

    # What follows runs in the worker.

    def _work(self) -> None:
        while True:
            with self._changed:
                called = self._changed.wait_for(self._is_called, None if self._healthy else RETEST)
                window = self._queue.take(self.rung, time.monotonic())
            if window:
                self._run_window(window)
            elif self._draining:
                return
            elif called:
                self._examine()
            else:
                self._healthy = self._passes_test()

    def _is_called(self) -> bool:
        return bool(self._queue.tickets or self._draining or (self.audit and self.audit.kept))

    def _run_window(self, window: list[Item]) -> None:
        begun = time.monotonic()
        kinds: dict[tuple[str, bool, bool], list[Item]] = {}
        for item in window:
            kinds.setdefault(item.ticket.kind, []).append(item)
        for items in kinds.values():
            self._run(items)
        with self._changed:
            self._counts["windows"] += 1
            self._pace = self._pace.after(window, time.monotonic() - begun)
            self.ladder.rung(self._queue.load, time.monotonic())  # it may be quiet from now on

    def _run(self, items: list[Item]) -> None:
        """Texts of one kind."""
        policy, trace = items[0].ticket.policy, items[0].ticket.trace
        until = np.array([item.ticket.until for item in items])
        try:
            predictions = [
                *self.classifier.predict_tokens([item.tokens for item in items], policy, until, trace)
            ]
            for item, prediction in zip(items, predictions, strict=True):
                self._answer(item, prediction)
        except Exception as error:
            log.exception("the model failed on a window of %d texts", len(items))
            for item in items:
                failure = RunFailed(
                    "the model failed on the texts that ran with this request; send it again."
                )
                failure.__cause__ = error
                self._fail(item.ticket, failure)
            self._healthy = self._passes_test()
            return
        if not all(prediction.finite for prediction in predictions):
            self._healthy = self._passes_test()

    def _answer(self, item: Item, prediction: Prediction) -> None:
        ticket, tokens = item.ticket, item.tokens
        ticket.answers[item.row] = prediction
        with self._changed:
            self._counts.update(items=1, tokens=len(tokens.ids), not_finite=not prediction.finite)
            self._layers[prediction.layer] += 1
            if ticket.rung is not None:
                self._rung_counts[ticket.rung] += 1
        if self.audit and ticket.rung not in (None, FULL_DEPTH) and not ticket.limited:
            self.audit.offer(ticket.rung, tokens, prediction)
        if len(ticket.answers) == len(ticket.tokens) and self._close(ticket, "answered"):
            ticket.future.set_result(ticket.reply())

    def _examine(self) -> None:
        """One text to full depth, so that whoever comes now does not wait long."""
        assert self.audit is not None
        try:
            broken = self.audit.examine(self._full_depth)
        except Exception:
            log.exception("the model failed on a text that was audited")
            self._healthy = self._passes_test()
            return
        if broken is not None:
            self.ladder.forbid(broken)
            policy = self.ladder.rungs[broken]
            log.error(
                "rung %d, %s, differs from full depth more often than its certificate allows, "
                "and is no longer used, nor is any that leaves earlier",
                broken,
                policy,
            )

    def _full_depth(self, tokens: Tokens) -> Prediction:
        return next(self.classifier.predict_tokens([tokens], NEVER))

    def _passes_test(self) -> bool:
        if not self._finite:
            return False
        try:
            tested = next(self.classifier.predict_tokens(self._test, NEVER, trace=True))
        except Exception:
            log.exception("the model failed on a test")
            return False
        return all(exit.finite for exit in tested.exits)


def check_request(request: Request) -> list[Text]:
    """Its texts."""
    if request.trace and request.deadline_ms is not None:
        raise BadOption("a trace runs all layers, so it takes no deadline; leave one of them out.")
    if isinstance(request.texts, str):
        raise BadData("a request holds a list of texts, also where it is one.")
    texts = [*check_texts(request.texts)]
    if not texts:
        raise BadOption("there are no texts; give at least one.")
    return texts
