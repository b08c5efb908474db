"""Batcher: requests of any shape in, replies out, one thread running the model.

It knows no HTTP. `submit` tokenises in the caller's thread and refuses at once what there is no room for; what it
accepts is answered exactly once, fails, or is cancelled. The worker takes what waits as soon as it is free.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from offramp.classifier import Classifier, Prediction
from offramp.classifier.texts import Text
from offramp.policy import Policy
from offramp.serve.audit import Audit
from offramp.serve.ladder import Ladder


@dataclass(frozen=True)
class Limits:
    """How much may wait, and how much runs at once."""

    items: int = 512
    """Texts that may wait. A few seconds' worth of a small encoder on a core or two."""
    tokens: int = 32_768
    """Tokens that may wait, padding included: texts of a request x the longest of them. 512 texts of 64."""
    window: int = 32
    """Texts that run together: whoever comes while they run waits for them."""
    window_tokens: int = 2048
    """Tokens that run together; a single longer text still runs."""


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
    """Texts whose answer was NaN or infinite."""
    windows: int
    layers: Mapping[int, int]
    """Texts answered by the exit of each layer."""
    rungs: Mapping[int, int]
    """Texts answered by each rung of the ladder."""


class Batcher:
    def __init__(
        self, classifier: Classifier, ladder: Ladder, limits: Limits, audit: Audit | None = None
    ) -> None:
        self.classifier = classifier
        self.ladder = ladder
        self.limits = limits
        self.audit = audit

    def submit(self, request: Request) -> Future[Reply]:
        """A place in the queue; or at once `Overloaded`, `Draining`, `TooLarge`, `TooLong`, `BadText` and whatever
        else is wrong with a request (`BadRequest`, `UnfitRule`, `BadPolicy`).

        Cancelling the future frees the places of its texts that have not begun. It ends in `Failed` if the run does.
        """
        raise NotImplementedError

    def drain(self, seconds: float) -> bool:
        """Accept nothing more, and finish what was accepted; whether it was done in time.

        What has not begun by then fails with `Draining`. The batcher is of no more use afterwards.
        """
        raise NotImplementedError

    @property
    def waiting(self) -> Waiting:
        raise NotImplementedError

    @property
    def rung(self) -> int:
        """Of the ladder, now."""
        raise NotImplementedError

    @property
    def healthy(self) -> bool:
        """Whether a text of ours got finite answers from all exits, at the start and after the last trouble."""
        raise NotImplementedError

    @property
    def items_per_second(self) -> float:
        """The pace of the latest windows; 0 before the first."""
        raise NotImplementedError

    @property
    def counters(self) -> Counters:
        raise NotImplementedError
