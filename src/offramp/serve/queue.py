"""Queue: requests in, windows of texts out. Not thread-safe; the batcher holds a lock around it."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf
from typing import Any, NamedTuple

from offramp.errors import TooLarge
from offramp.inference.texts import Text
from offramp.policy import Policy
from offramp.runtimes import Tokens
from offramp.serve.logs import RequestTrace
from offramp.serve.options import Limits
from offramp.wording import count

TOKENS_PER_TEXT = 64
"""A window of N texts holds at most N times this many tokens; a single longer text still runs."""


@dataclass(frozen=True)
class Request:
    """Texts, with the options of `Classifier.predict`."""

    texts: Sequence[Text]
    """Single texts or pairs, at least one."""
    policy: Policy | None = None
    """Instead of the ladder's."""
    max_layer: int | None = None
    deadline_ms: float | None = None
    """Counted from `arrived`."""
    trace: bool = False
    truncate: bool = True
    """Truncate texts that are longer than the model takes, rather than refuse them."""
    mixed: bool = False
    """Accept single texts beside pairs, which is more often a mistake."""
    is_list: bool = False
    """The texts are the documents of one query, which a policy with the rule `rank` compares with each other."""
    top_k: int | None = None
    """How many of the best of them are asked for; by default as many as the rule was calibrated for."""
    arrived: float = field(default_factory=time.monotonic)
    trace_context: RequestTrace | None = None


@dataclass(frozen=True)
class Example:
    """What is decided as one: a text or a pair, all windows of a text whose tokens are tagged, or the documents of a
    query."""

    rows: Sequence[Tokens]
    """What the model runs."""
    key: Hashable = None
    """Its own in the cache."""
    join: Callable[[Sequence[Any]], Any] | None = None
    """Makes one prediction of the outcomes of its rows; None if each is a prediction."""

    def predictions(self, outcomes: Sequence[Any]) -> list[Any]:
        return [self.join(outcomes)] if self.join else [*outcomes]


@dataclass(frozen=True)
class Reply:
    predictions: list[Any]
    """A `Prediction` for each text, or `Spans` if its tokens are tagged."""
    policy: str
    """The policy that ran, the same for all texts of a request."""
    rung: int | None
    """On the ladder; -1 is full depth, when every rung is forbidden; None if the request named its policy."""
    waited_ms: float
    """From its arrival until the first of its texts ran."""
    ran_ms: float
    """From then until the last was done."""
    tokens: int
    """Those that the model read, without padding."""
    cached: bool = False
    """Whether all predictions are those of earlier requests."""

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return int(self.predictions[0].layers)

    @property
    def mean_layer(self) -> float:
        return float(sum(prediction.layer for prediction in self.predictions) / len(self.predictions))


@dataclass(frozen=True)
class Waiting:
    items: int
    tokens: int


@dataclass(eq=False)
class Ticket:
    """A request that was accepted."""

    request: Request
    examples: Sequence[Example]
    rungs: tuple[Policy, ...]
    """Its policy on each rung of the ladder, full depth last; or the one that it named."""
    audited: bool
    """Whether the policy of the rung alone decides, on what its certificate is about."""
    top_k: int | None = None
    """How many of the best documents to find in a list, which runs as a whole; None for single texts."""
    future: Future[Reply] = field(default_factory=Future)
    begun: int = 0
    """How many of its rows have been taken."""
    rung: int | None = None
    waited: float = 0.0
    outcomes: dict[int, Any] = field(default_factory=dict)
    """By row."""

    def __post_init__(self) -> None:
        deadline, self.until = self.request.deadline_ms, inf
        if deadline is not None:
            self.until = self.request.arrived + deadline / 1000
        self.tokens = [row for example in self.examples for row in example.rows]
        lengths = [len(tokens.ids) for tokens in self.tokens]
        self.tokens_each = ceil(sum(lengths) / len(lengths)) if self.is_list else max(lengths)
        """What each row counts as: the longest, to which it may be padded; in a list, the mean."""

    @property
    def is_list(self) -> bool:
        return self.top_k is not None

    @property
    def left(self) -> int:
        return len(self.tokens) - self.begun

    @property
    def policy(self) -> Policy:
        return self.rungs[self.rung or 0]  # FULL_DEPTH is -1, the last

    @property
    def batch_key(self) -> tuple[str, bool, bool]:
        """Texts with the same key run together. A deadline makes the engine run every exit's head, so texts with
        one run separately."""
        return str(self.policy), self.request.trace, self.until < inf

    def begin(self, rung: int, now: float) -> None:
        """Fixes the rung for all texts of the request."""
        self.rung = rung if self.request.policy is None else None
        self.waited = now - self.request.arrived

    def predictions(self) -> list[list[Any]]:
        """Those of each example."""
        rows = iter(range(len(self.tokens)))
        return [
            example.predictions([self.outcomes[row] for row in islice(rows, len(example.rows))])
            for example in self.examples
        ]

    def reply(self, predictions: Sequence[Sequence[Any]]) -> Reply:
        flat = [prediction for of_example in predictions for prediction in of_example]
        tokens = sum(len(row.ids) for row in self.tokens)
        ran = time.monotonic() - self.request.arrived - self.waited
        return Reply(flat, str(self.policy), self.rung, 1000 * self.waited, 1000 * ran, tokens)


class QueuedText(NamedTuple):
    ticket: Ticket
    row: int

    @property
    def tokens(self) -> Tokens:
        return self.ticket.tokens[self.row]


class Queue:
    """Tickets, served round robin: a window takes one text of each in turn, so a small request joins the next
    window however large the requests before it, and a large one keeps moving beside small ones. Tickets past their
    deadline, which run to the first exit only, go before all but the first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tickets: deque[Ticket] = deque()
        self.lists: list[Ticket] = []
        """Tickets that are ranked as a whole, waiting or running: their texts count until all are done, because a
        running list holds the hidden states of all its documents."""
        self.texts = Room("text", limits.items, limits.tokens)
        self.documents = Room("document", limits.documents, TOKENS_PER_TEXT * limits.documents)

    @property
    def unfinished(self) -> list[Ticket]:
        """Tickets of which a text is still waiting, or a list still running."""
        return [*self.tickets, *self.lists]

    @property
    def load(self) -> float:
        """How full the queue is, from 0 to 1."""
        return max(self.texts.load, self.documents.load)

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.texts.items + self.documents.items, self.texts.tokens + self.documents.tokens)

    def room(self, is_list: bool) -> "Room":
        return self.documents if is_list else self.texts

    def add(self, ticket: Ticket) -> None:
        (self.lists if ticket.is_list else self.tickets).append(ticket)
        self._count(ticket, ticket.left)

    def remove(self, ticket: Ticket) -> None:
        """Drops the texts of a ticket that are still waiting, if any; a list also while it runs."""
        if ticket in self.tickets:
            self.tickets.remove(ticket)
            self._count(ticket, -ticket.left)
        elif ticket in self.lists:
            self.lists.remove(ticket)
            self._count(ticket, -len(ticket.tokens))

    def take(self, rung: int, now: float) -> list[QueuedText]:
        """The next window. Tickets with no text taken yet begin on this rung."""
        window: list[QueuedText] = []
        tokens = 0
        self.tickets = deque(
            sorted(self.tickets, key=lambda ticket: ticket is not self.tickets[0] and ticket.until > now)
        )
        while self.tickets and len(window) < self.limits.window:
            ticket = self.tickets[0]
            text = QueuedText(ticket, ticket.begun)
            tokens += len(text.tokens.ids)
            if window and tokens > TOKENS_PER_TEXT * self.limits.window:
                break
            if not ticket.begun:
                ticket.begin(rung, now)
            self.tickets.popleft()
            ticket.begun += 1
            self._count(ticket, -1)
            if ticket.left:
                self.tickets.append(ticket)
            window.append(text)
        return window

    def take_lists(self, rung: int, now: float) -> list[Ticket]:
        """The next lists to run together, on this rung: as many of one policy as fit a window, or a single longer
        one."""
        taken: list[Ticket] = []
        for ticket in self.lists:
            if ticket.begun:
                continue
            documents = sum(other.begun for other in taken) + len(ticket.tokens)
            if taken and (documents > self.limits.window or ticket.rungs != taken[0].rungs):
                break
            ticket.begin(rung, now)
            ticket.begun = len(ticket.tokens)
            taken.append(ticket)
        return taken

    def _count(self, ticket: Ticket, items: int) -> None:
        self.room(ticket.is_list).reserve(items, items * ticket.tokens_each)


@dataclass
class Room:
    """The texts and tokens that a part of the queue holds, and may hold."""

    kind: str
    """What it holds, in messages; a long text whose tokens are tagged counts as one for each of its windows."""
    most_items: int
    most_tokens: int
    items: int = 0
    tokens: int = 0

    @property
    def load(self) -> float:
        return max(self.items / self.most_items, self.tokens / self.most_tokens)

    def check_size(self, items: int, tokens: int) -> None:
        """`TooLarge` if a request of this size can never enter."""
        if items > self.most_items or tokens > self.most_tokens:
            raise TooLarge(
                f"{count(items, self.kind)} with at least {tokens} tokens, padding included, can never fit "
                f"the queue ({count(self.most_items, self.kind)}, {self.most_tokens} tokens); split the request."
            )

    def has(self, items: int, tokens: int) -> bool:
        """Whether a request of this size may enter now."""
        return self.items + items <= self.most_items and self.tokens + tokens <= self.most_tokens

    def reserve(self, items: int, tokens: int) -> None:
        """Takes room, also for texts that are not tokenized yet; negative numbers return it."""
        self.items += items
        self.tokens += tokens
