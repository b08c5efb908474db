"""Connections: how many there may be, and how long they may stay without a request.

Every connection takes a file descriptor. At the limit, a new one takes the place of the one that has kept the server
waiting for longest, so that clients that are silent or slow never keep others out.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from offramp.errors import BadOption

ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before the next look at those that are open, so that their number stays near the
limit; asyncio uses it for the kernel's queue too, where more may wait."""
BACKLOG = 2048
"""Connections that may wait in the kernel's queue."""
OWN_FILES = 256
"""Descriptors that a worker needs besides: for libraries, weights, logs, metrics, and a few connections too many."""
MOST_FILES = 1 << 20
"""Where the system sets no limit."""
SPARE = 1536
"""Connections by default, beyond one for each text that may wait: clients keep some open between requests, more so if
many are refused, and only silent ones should be closed."""


class LimitedConnection(H11Protocol):
    """uvicorn's connection, with a limit on their number and on the time until the head of the next request.

    Args:
        most: how many there may be.
        header_seconds: how long one may stay without the head of a request.
        by_age: all of the same server, those that have waited for a request for longest first.
    """

    def __init__(
        self,
        *arguments: Any,
        most: int,
        header_seconds: float,
        by_age: dict["LimitedConnection", None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.most, self.header_seconds, self.by_age = most, header_seconds, by_age

    @property
    def waits_for_client(self) -> bool:
        """Whether no request has arrived completely that is not yet answered."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.wait_for_head()
        if len(self.by_age) > self.most:
            # timers run after what has arrived was read, so that requests of a burst of connections are seen first
            self.loop.call_later(0, self.make_room)

    def make_room(self) -> None:
        if len(self.by_age) > self.most:
            oldest = next((each for each in self.by_age if each.waits_for_client), None)
            if oldest:
                oldest.transport.abort()
                del self.by_age[oldest]  # now: `connection_lost` comes later

    def wait_for_head(self) -> None:
        self.by_age.pop(self, None)
        self.by_age[self] = None
        self.head_timer = self.loop.call_later(self.header_seconds, self.abort_without_head, self.cycle)

    def abort_without_head(self, last: object) -> None:
        if self.cycle is last:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self.head_timer.cancel()
        if self in self.by_age:
            self.wait_for_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.head_timer.cancel()
        self.by_age.pop(self, None)
        super().connection_lost(exc)


def connection_limit(wanted: int | None, waiting: int) -> int:
    """The most connections of a worker, for which enough files may be open; `waiting` texts may wait in it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MOST_FILES if limit == resource.RLIM_INFINITY else limit for limit in limits)
    most = wanted or min(waiting + SPARE, hard - OWN_FILES)
    if most < 1 or most + OWN_FILES > hard:
        raise BadOption(
            f"max_connections={most} needs {most + OWN_FILES} open files and {hard} are allowed; "
            "lower it, or raise the limit with `ulimit -n`."
        )
    if most + OWN_FILES > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + OWN_FILES, limits[1]))
    return most
