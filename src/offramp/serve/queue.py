"""What waits: requests in, windows of texts out. No threads in here; the batcher holds a lock around it."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from offramp.classifier import Prediction
from offramp.classifier.texts import Text
from offramp.errors import BadOption, TooLarge
from offramp.policy import Policy
from offramp.stages import Tokens

LONG = 64
"""Tokens for each text of a window, on average, at which it ends; a single longer text still runs."""


@dataclass(frozen=True)
class Limits:
    """How much may wait, and how much runs at once."""

    items: int = 512
    """Texts that may wait. A few seconds' worth of a small encoder on a core or two."""
    tokens: int = 32_768
    """Tokens that may wait, padding included: texts of a request x the longest of them. 512 texts of 64."""
    window: int = 32
    """Texts that run together, fewer if they are long: whoever comes while they run waits for them."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise BadOption(f"the limit {name}={value} lets nothing through; it must be at least 1.")


@dataclass(frozen=True)
class Request:
    """Texts, and how to answer them; options as of `Classifier.predict`."""

    texts: Sequence[Text]
    """Single texts or pairs, at least one."""
    policy: Policy | None = None
    """Instead of the ladder's."""
    max_layer: int | None = None
    deadline_ms: float | None = None
    """From `submit` on, so that waiting counts."""
    trace: bool = False
    truncate: bool = True
    """Cut texts that are longer than the model takes, rather than refuse them."""


@dataclass(frozen=True)
class Reply:
    predictions: list[Prediction]
    policy: str
    """What decided, for all of them."""
    rung: int | None
    """Of the ladder; -1 is full depth, because all rungs are forbidden; None if the request named its policy."""
    waited_ms: float
    """From `submit` until the first of its texts ran."""


@dataclass(frozen=True)
class Waiting:
    items: int
    tokens: int


@dataclass(eq=False)
class Ticket:
    """A request in the queue."""

    tokens: list[Tokens]
    rungs: tuple[Policy, ...]
    """Its policy on each rung of the ladder, full depth last; or the one that it named."""
    named: bool
    """Whether it named its policy."""
    limited: bool
    """Whether texts may leave elsewhere than the policy of a rung says, because of its own limits."""
    trace: bool
    submitted: float
    until: float
    future: Future[Reply] = field(default_factory=Future)
    open: bool = True
    """Whether nobody has answered it, or begun to."""
    begun: int = 0
    """How many of its texts have been taken."""
    rung: int | None = None
    waited: float = 0.0
    answers: dict[int, Prediction] = field(default_factory=dict)
    """By row."""

    def __post_init__(self) -> None:
        self.longest = max(len(tokens.ids) for tokens in self.tokens)

    @property
    def left(self) -> int:
        return len(self.tokens) - self.begun

    @property
    def policy(self) -> Policy:
        return self.rungs[self.rung or 0]  # FULL_DEPTH is -1, the last

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """Texts of one kind run together. Deadlines make every exit speak, so they are a kind of their own."""
        return str(self.policy), self.trace, self.until < inf

    def begin(self, rung: int, now: float) -> None:
        """On this rung, for all of its texts."""
        self.rung = None if self.named else rung
        self.waited = now - self.submitted

    def reply(self) -> Reply:
        predictions = [self.answers[row] for row in range(len(self.tokens))]
        return Reply(predictions, str(self.policy), self.rung, 1000 * self.waited)


class Item(NamedTuple):
    """One text of a request."""

    ticket: Ticket
    row: int

    @property
    def tokens(self) -> Tokens:
        return self.ticket.tokens[self.row]


class Queue:
    """Tickets by turn. A window takes one text of each and then again, so that a small request joins the next
    window however large those before it are, and a large one goes on beside small ones."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tickets: deque[Ticket] = deque()
        self.items = 0
        self.tokens = 0

    @property
    def load(self) -> float:
        """The share of what may wait that does."""
        return max(self.items / self.limits.items, self.tokens / self.limits.tokens)

    def has_room(self, items: int, tokens: int) -> bool:
        """The one admission, for requests of all shapes; `TooLarge` if there can never be room."""
        limits = self.limits
        if items > limits.items or tokens > limits.tokens:
            raise TooLarge(
                f"{items} texts with at least {tokens} tokens, padding included, are more than may ever wait here: "
                f"{limits.items} texts and {limits.tokens} tokens. Send them in parts."
            )
        return self.items + items <= limits.items and self.tokens + tokens <= limits.tokens

    def add(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)
        self._count(ticket, ticket.left)

    def remove(self, ticket: Ticket) -> None:
        """Those of its texts that still wait, if any."""
        if ticket in self.tickets:
            self.tickets.remove(ticket)
            self._count(ticket, -ticket.left)

    def take(self, rung: int, now: float) -> list[Item]:
        """The next window. Requests that had no turn yet begin, on this rung."""
        window: list[Item] = []
        tokens = 0
        while self.tickets and len(window) < self.limits.window:
            ticket = self.tickets[0]
            item = Item(ticket, ticket.begun)
            tokens += len(item.tokens.ids)
            if window and tokens > LONG * self.limits.window:
                break
            if not ticket.begun:
                ticket.begin(rung, now)
            self.tickets.popleft()
            ticket.begun += 1
            self._count(ticket, -1)
            if ticket.left:
                self.tickets.append(ticket)
            window.append(item)
        return window

    def _count(self, ticket: Ticket, items: int) -> None:
        self.items += items
        self.tokens += items * ticket.longest
