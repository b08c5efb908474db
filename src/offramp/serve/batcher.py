"""Batcher: requests of any shape in, replies out, one thread running the model. It knows no HTTP.

`submit` tokenizes in the caller's thread and refuses, before it does, what the queue has no room for. Every accepted
request is answered once, fails, or is cancelled. The worker takes whatever is waiting as soon as it is free, so an
idle server adds no delay. It audits while nothing waits, and for a small share of the time while something does.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from offramp.errors import BadOption, Draining, OfframpError, Overloaded, RunFailed
from offramp.inference.classifier import predict_tokens
from offramp.inference.classifier import predictions as predictions_of
from offramp.inference.runner import NEVER, Runner
from offramp.inference.tagger import Tagger, tagged_windows
from offramp.inference.texts import Text, check_texts
from offramp.lists import Lists
from offramp.policy import Decision, Policy
from offramp.problems import Array
from offramp.runtimes import Tokens
from offramp.serve.audit import Audit, Auditor, Sample
from offramp.serve.cache import Cache, CacheEntry
from offramp.serve.ladder import Ladder, top_k_of
from offramp.serve.options import Limits
from offramp.serve.queue import Example, Queue, QueuedText, Reply, Request, Room, Ticket, Waiting

__all__ = ["Batcher", "Limits", "Reply", "Request", "Waiting"]

TEST = "The quick brown fox jumps over the lazy dog."
RETEST = 5.0
"""Seconds after which a model that failed its test is tested again."""
IDLE_STEP = 0.25
"""Seconds after which an idle worker checks whether to step back up the ladder."""
LAST_WINDOW = 2.5
"""Seconds to wait for the running window once the time to drain is over."""
STOPPED = "the server was stopped before this request was answered; send it to another server."
LONG_TOKEN = 8
"""Characters of a long token, to estimate how many tokens a text has at least."""
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

    def add(self, tokens: int, seconds: float) -> "Pace":
        return Pace(DECAY * self.tokens + tokens, DECAY * self.seconds + seconds)

    def seconds_for(self, tokens: int) -> float:
        return tokens * self.seconds / self.tokens if self.tokens else DEFAULT_RETRY


@dataclass
class ListRun:
    """Lists of documents that are ranked together, one micro-batch for each step."""

    tickets: list[Ticket]
    steps: Iterator[Decision]
    decision: Decision | None = None
    """The latest; complete after the last step."""
    seconds: float = 0.0


class Batcher:
    """A runner with a queue and a worker thread.

    `audit`, if given, audits the rungs of the ladder; `original` is the model that their certificates name, if that
    is not the model at full depth. The audit waits until it is loaded. `cache`, if given, answers exact repeats.
    """

    def __init__(
        self,
        runner: Runner,
        ladder: Ladder,
        limits: Limits,
        audit: Audit | None = None,
        original: Future[Runner] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.runner = runner
        self._list_runs: deque[ListRun] = deque()
        self.ladder = ladder
        self.limits = limits
        self.audit = audit
        self.cache = cache
        rungs = [*ladder.rungs, full_depth(ladder.rungs[0])]
        self._rungs = tuple(runner.resolve_policy(policy, None) for policy in rungs)
        self._queue = Queue(limits)
        self._pace = Pace()
        self._draining = False
        self._changed = threading.Condition()  # guards queue, pace and draining
        self._finite = runner.runtime.is_finite()
        if not self._finite:
            log.error("some of the model's weights are NaN or infinite")
        self.tagger = Tagger(runner) if runner.runtime.info.problem.of_tokens else None
        self._test = runner.tokenizer([TEST])
        self._healthy = self._passes_test()
        self._auditor = Auditor(audit, ladder, runner, original) if audit else None
        if original is not None:
            original.add_done_callback(self._notify)
        self._worker = threading.Thread(target=self._work, name="offramp-worker", daemon=True)
        self._worker.start()

    def submit(self, request: Request) -> Future[Reply]:
        """Queues a request. Raises `Overloaded`, `Draining`, `TooLarge`, `BadData`, `BadOption`, `Incompatible` or
        `BadPolicy` at once; a run that fails later gives the future a `RunFailed`.

        Cancelling the future removes those of its texts that have not begun from the queue.
        """
        texts = self._check(request)
        rungs = self._policies(request)
        calibrated_for = top_k_of(rungs[0])
        top_k = (request.top_k or calibrated_for) if request.is_list and calibrated_for else None
        # a client may ask for more than there are, and for more than fits an integer
        top_k = top_k and min(top_k, len(texts))
        options = top_k, request.truncate, request.trace
        keys = [(text, options) for text in texts] if top_k is None else [(tuple(texts), options)]
        if self.cache and (cached := self._recall(self.cache, keys, rungs, request)):
            return cached
        room = self._queue.room(is_list=top_k is not None)
        with self._reserved(room, len(texts), self._estimate_tokens(texts, room)):
            examples = self._read(texts, keys, request)
        audited = rungs is self._rungs and request.deadline_ms is None and top_k == calibrated_for
        ticket = Ticket(request, examples, rungs, audited, top_k)
        # not with the ticket itself, which would be a cycle: only the garbage collector could free it
        ticket.future.add_done_callback(self._remove_cancelled)
        with self._changed:
            room.check_size(ticket.left, ticket.left * ticket.tokens_each)
            self._check_room(room, ticket.left, ticket.left * ticket.tokens_each)
            self._queue.add(ticket)
            self._changed.notify()
        return ticket.future

    def _check(self, request: Request) -> list[Any]:
        """The request's texts, if they and its options are valid."""
        if request.trace and request.deadline_ms is not None:
            raise BadOption("a trace runs all layers, so it cannot have a deadline; drop one of the two.")
        pairs = False if self.tagger else self.runner.runtime.info.trained_on_pairs
        texts = [*check_texts(request.texts, pairs, request.mixed, keep_length=self.tagger is not None)]
        if not texts:
            raise BadOption("no texts; give at least one.")
        return texts

    def _read(self, texts: list[Any], keys: Sequence[Hashable], request: Request) -> list[Example]:
        """An example for each key."""
        if self.tagger:
            join = self.tagger.spans_of
            windowed = zip(texts, self.tagger.tokenizer(texts), keys, strict=True)
            return [Example(read.windows, key, partial(join, text, read)) for text, read, key in windowed]
        rows = self.runner.tokenizer(texts, whole=not request.truncate)
        if len(keys) < len(rows):  # a list
            return [Example(rows, keys[0])]
        return [Example([row], key) for row, key in zip(rows, keys, strict=True)]

    def _recall(
        self, cache: Cache, keys: Sequence[Hashable], rungs: Sequence[Policy], request: Request
    ) -> Future[Reply] | None:
        """The reply to a request of which everything is cached, under the policy that would run now."""
        rung = None if request.policy else self.ladder.current
        policy = rungs[rung or 0]
        entries = cache.get([(key, policy_key(policy)) for key in keys])
        if entries is None:
            return None
        future: Future[Reply] = Future()
        waited = 1000 * (time.monotonic() - request.arrived)
        predictions = [prediction for entry in entries for prediction in entry.predictions]
        tokens = sum(entry.tokens for entry in entries)
        future.set_result(Reply(predictions, str(policy), rung, waited, 0.0, tokens, cached=True))
        return future

    def check_room(self, requests: int) -> None:
        """Raises `Overloaded` or `Draining` if this many requests of one text cannot enter now."""
        with self._changed:
            self._check_room(self._queue.texts, requests, requests)

    def drain(self, seconds: float) -> None:
        """Refuses new requests, and finishes the accepted ones for at most this long; then they fail with `Draining`.

        The running window is waited for even then, but not for long. The batcher cannot be used afterwards.
        """
        with self._changed:
            self._draining = True
            self._changed.notify()
        self._worker.join(seconds)
        with self._changed:
            late = self._queue.unfinished
        for ticket in late:
            self._fail(ticket, Draining(STOPPED))
        self._worker.join(LAST_WINDOW)
        self.settle_audit()

    def settle_audit(self) -> None:
        """Shares what the audit has found with other workers; to be called every second, by another thread."""
        if self._auditor and self._auditor.audit.folder:
            self._auditor.settle()

    @property
    def running(self) -> bool:
        """Whether the worker thread lives; a process that ends with a thread inside the model aborts."""
        return self._worker.is_alive()

    @property
    def loading(self) -> bool:
        """Whether the original model is still being loaded, by a thread of its own."""
        return self._auditor is not None and self._auditor.is_loading

    @property
    def waiting(self) -> Waiting:
        with self._changed:
            return self._queue.waiting

    @property
    def healthy(self) -> bool:
        """Whether the weights are finite and a test text gets finite logits at every exit. Tested at the start and
        after every failure."""
        return self._healthy and self.running

    def _notify(self, _: Future[Runner]) -> None:
        with self._changed:
            self._changed.notify()

    def _policies(self, request: Request) -> tuple[Policy, ...]:
        if request.policy is None and request.max_layer is None:
            return self._rungs
        policies = self._rungs if request.policy is None else [request.policy]
        return tuple(self.runner.resolve_policy(policy, request.max_layer) for policy in policies)

    @contextmanager
    def _reserved(self, room: Room, items: int, tokens: int) -> Iterator[None]:
        """Texts that are being tokenized take the room that they will probably need."""
        with self._changed:
            room.check_size(items, items)
            self._check_room(room, items, tokens)
            room.reserve(items, tokens)
        try:
            yield
        finally:
            with self._changed:
                room.reserve(-items, -tokens)

    def _estimate_tokens(self, texts: list[Text], room: Room) -> int:
        """Too low for most texts, but about right for very long ones, which take long to tokenize."""
        longest = max(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts)
        tokens = 1 + longest // LONG_TOKEN
        if not self.tagger:  # which reads texts whole
            tokens = min(tokens, self.runner.tokenizer.max_length)
        return min(len(texts) * tokens, room.most_tokens)

    def _check_room(self, room: Room, items: int, tokens: int) -> None:
        if self._draining:
            raise Draining("the server is stopping; send the request to another server.")
        if not self.running:
            raise RunFailed("the server's worker thread has died, see the log; restart the server.")
        if not room.has(items, tokens):
            seconds = self._pace.seconds_for(self._queue.waiting.tokens)
            raise Overloaded(f"the queue is full; retry in {seconds:.1f} s.", seconds)

    def _remove_cancelled(self, future: Future[Reply]) -> None:
        if future.cancelled():
            with self._changed:
                for ticket in self._queue.unfinished:
                    if ticket.future is future:
                        self._queue.remove(ticket)

    def _fail(self, ticket: Ticket, error: OfframpError) -> None:
        if self._close(ticket):
            ticket.future.set_exception(error)

    def _close(self, ticket: Ticket) -> bool:
        """Removes a ticket. True if the caller must resolve its future: it is neither resolved nor cancelled."""
        with self._changed:
            self._queue.remove(ticket)
            future = ticket.future
            return not (future.running() or future.done()) and future.set_running_or_notify_cancel()

    # From here on everything runs in the worker thread.

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._wait_limit())
                now = time.monotonic()
                rung = self.ladder.step(self._queue.load, now)
                window, lists = self._queue.take(rung, now), self._queue.take_lists(rung, now)
            if lists:
                self._list_runs.append(self._start(lists))
            busy = bool(window or self._list_runs)
            if window:
                self._audit_while_busy(self._run_window(window))
            if self._list_runs:
                self._audit_while_busy(self._step(self._list_runs.popleft()))
            if busy:
                continue
            if self._draining:
                return
            if self._auditor and self._auditor.has_work:
                self._audit(self._auditor.run_step)
            elif not self._healthy:
                self._healthy = self._passes_test()

    def _has_work(self) -> bool:
        return bool(
            self._queue.tickets
            or self._queue.lists
            or self._list_runs
            or self._draining
            or (self._auditor and self._auditor.has_work)
        )

    def _wait_limit(self) -> float | None:
        if not self._healthy:
            return RETEST
        return IDLE_STEP if self.ladder.current > 0 else None

    def _run_window(self, window: list[QueuedText]) -> float:
        """Returns how long it took, in seconds."""
        start = time.monotonic()
        batches: dict[tuple[str, bool, bool], list[QueuedText]] = {}
        for text in window:
            batches.setdefault(text.ticket.batch_key, []).append(text)
        for texts in sorted(batches.values(), key=lambda texts: texts[0].ticket.until == inf):
            self._run(texts)  # deadlines first
        seconds = time.monotonic() - start
        with self._changed:
            self._pace = self._pace.add(sum(text.ticket.tokens_each for text in window), seconds)
        return seconds

    def _run(self, texts: list[QueuedText]) -> None:
        """Runs texts that share a batch key."""
        policy, trace = texts[0].ticket.policy, texts[0].ticket.request.trace
        until = np.array([text.ticket.until for text in texts])
        try:
            outcomes = self._outcomes([text.tokens for text in texts], policy, until, trace)
            for text, outcome in zip(texts, outcomes, strict=True):
                self._finish(text, outcome)
        except Exception as error:
            log.exception("the model failed on a window of %d texts", len(texts))
            self._fail_all([text.ticket for text in texts], error)
            return
        if not all(outcome.finite for outcome in outcomes):
            self._healthy = self._passes_test()

    def _outcomes(self, tokens: list[Tokens], policy: Policy, until: Array, trace: bool) -> list[Any]:
        if self.tagger:
            return tagged_windows(tokens, self.runner.engine.run(tokens, policy, until))
        return [*predict_tokens(self.runner, tokens, policy, until, trace)]

    def _fail_all(self, tickets: Iterable[Ticket], error: Exception) -> None:
        for ticket in tickets:
            failure = RunFailed("the model failed on the batch that this request was in; send it again.")
            failure.__cause__ = error
            self._fail(ticket, failure)
        self._healthy = self._passes_test()

    def _start(self, tickets: list[Ticket]) -> ListRun:
        sizes = [len(ticket.tokens) for ticket in tickets]
        lists = Lists.consecutive(sizes, [ticket.top_k for ticket in tickets])
        tokens = [tokens for ticket in tickets for tokens in ticket.tokens]
        until = np.repeat([ticket.until for ticket in tickets], sizes)
        policy = tickets[0].policy  # that of all
        return ListRun(tickets, self.runner.engine.steps(tokens, policy, until, lists))

    def _step(self, run: ListRun) -> float:
        """Runs one micro-batch of some lists; between them, other lists and windows have their turn. Returns how long
        it took, in seconds."""
        if all(ticket.future.done() for ticket in run.tickets):  # cancelled, or the server stops
            return 0.0
        start = time.monotonic()
        try:
            decision = next(run.steps, None)
            seconds = time.monotonic() - start
            run.seconds += seconds
            if decision is None:
                self._finish_lists(run)
            else:
                run.decision = decision
                self._list_runs.append(run)
            return seconds
        except Exception as error:
            log.exception("the model failed on %d lists of documents", len(run.tickets))
            self._fail_all(run.tickets, error)
            return 0.0

    def _finish_lists(self, run: ListRun) -> None:
        assert run.decision is not None
        predictions = [*predictions_of(run.decision, self.runner.runtime)]
        with self._changed:
            tokens = sum(len(ticket.tokens) * ticket.tokens_each for ticket in run.tickets)
            self._pace = self._pace.add(tokens, run.seconds)
        first = 0
        for ticket in run.tickets:
            ticket.outcomes = dict(enumerate(predictions[first : first + len(ticket.tokens)]))
            first += len(ticket.tokens)
            self._answer(ticket)
        if not all(prediction.finite for prediction in predictions):
            self._healthy = self._passes_test()

    def _finish(self, text: QueuedText, outcome: Any) -> None:
        text.ticket.outcomes[text.row] = outcome
        if len(text.ticket.outcomes) == len(text.ticket.tokens):
            self._answer(text.ticket)

    def _answer(self, ticket: Ticket) -> None:
        predictions = ticket.predictions()
        if not self._close(ticket):
            return
        try:
            self._keep(ticket, [*zip(ticket.examples, predictions, strict=True)])
        except Exception:  # the client gets its answer all the same
            log.exception("predictions could not be kept for the audit and the cache")
        ticket.future.set_result(ticket.reply(predictions))

    def _keep(self, ticket: Ticket, predicted_examples: Sequence[tuple[Example, Sequence[Any]]]) -> None:
        """Keeps the predictions for the audit and the cache."""
        if self.audit and ticket.audited and ticket.rung is not None:
            context = ticket.request.trace_context
            samples = [Sample(example, predictions, context) for example, predictions in predicted_examples]
            self.audit.offer(ticket.rung, samples)
        if self.cache is None or ticket.until < inf:
            return
        policy = policy_key(ticket.policy)
        for example, predictions in predicted_examples:
            if all(prediction.finite for prediction in predictions):
                tokens = sum(len(row.ids) for row in example.rows)
                self.cache.put((example.key, policy), CacheEntry(predictions, tokens))

    def _audit_while_busy(self, seconds: float) -> None:
        if self._auditor:
            self._audit(partial(self._auditor.run_while_busy, seconds))

    def _audit(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception:
            log.exception("the model failed on a text of the audit")
            self._healthy = self._passes_test()

    def _passes_test(self) -> bool:
        if not self._finite:
            return False
        try:
            logits, _ = self.runner.engine.trace(self._test)
        except Exception:
            log.exception("the model failed on a test")
            return False
        return bool(np.isfinite(logits).all())


def full_depth(policy: Policy) -> Policy:
    """A policy with which nothing exits early. That of a policy for lists keeps its rule, which makes documents of
    different exits comparable if a deadline stops them."""
    return NEVER if top_k_of(policy) is None else replace(policy, threshold=0.0, certificate=None)


def policy_key(policy: Policy) -> Hashable:
    """All of a policy that decides; its text has not what its rule was fitted to."""
    return str(policy), policy.rule
