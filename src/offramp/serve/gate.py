"""Gate: requests for predictions wait here for their turn, and are refused here if there is no room for them.

Reading, routing and answering a request takes the event loop about as long as a model with early exits takes to run
it. So under load it may be the loop that falls behind, and then requests and probes wait in the kernel, where nobody
counts them. The gate looks at the first bytes of a request before uvicorn parses them. It refuses at once, for a
small part of the cost, what the queue has no room for, and lets in only a few requests in each turn of the loop, so
that there is always time for new connections, refusals and probes.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import unquote

from fastapi import Request, Response
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES

from offramp.errors import OfframpError
from offramp.serve.error_responses import ErrorShape, offramp_error_response, use_shape
from offramp.serve.logs import RequestLog

AT_ONCE = 4
"""Requests that are let in in one turn of the event loop."""
HEAD = re.compile(rb"POST ([^\s?]+)\S* HTTP/1\.1((?:\r\n[\w!#$%&'*+.^`|~-]+:[^\r\n\0]*)*)", re.ASCII)
UNUSUAL = {b"transfer-encoding", b"expect", b"upgrade"}
"""Headers of requests that only uvicorn reads."""
CLOSE = (b"connection", b"close")


class Connection(Protocol):
    """What the gate needs of a connection; see `offramp.serve.network`."""

    def let_in(self) -> None:
        """Has uvicorn read what was held."""


class Gate:
    """
    Args:
        check_room: raises an error if there is no room for this many requests.
        shape_of: the errors of the protocol at a path; None if the path does not take requests for predictions.
        log: logs and counts what is refused here.
    """

    def __init__(
        self, check_room: Callable[[int], None], shape_of: Callable[[str], ErrorShape | None], log: RequestLog
    ) -> None:
        self.check_room, self.shape_of, self.log = check_room, shape_of, log
        self.waiting: deque[Connection] = deque()

    @property
    def problem(self) -> OfframpError | None:
        """Why no further request may enter now."""
        try:
            self.check_room(len(self.waiting) + 1)
        except OfframpError as error:
            return error
        return None

    def refusal(self, data: bytes, problem: OfframpError) -> Response | None:
        """The response to a request that may not enter; None if uvicorn must read it to find the right one."""
        scope = whole_request(data)
        shape = scope and self.shape_of(scope["path"])
        if not scope or not shape:
            return None
        entry = self.log.begin(scope)
        request = Request(scope)
        use_shape(request, shape)
        response = offramp_error_response(request, problem)
        response.raw_headers += entry.headers
        if request.headers.get("connection", "").lower() == "close":
            response.raw_headers.append(CLOSE)
        self.log.end_unread(entry, response.status_code)
        return response

    def wait_for_turn(self, connection: Connection) -> None:
        self.waiting.append(connection)
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self.let_some_in)

    def let_some_in(self) -> None:
        for _ in range(min(AT_ONCE, len(self.waiting))):
            self.waiting.popleft().let_in()
        if self.waiting:
            asyncio.get_running_loop().call_soon(self.let_some_in)


def whole_request(data: bytes) -> Scope | None:
    """The head of a request for predictions; None unless `data` is exactly one ordinary request with its body."""
    head, end, body = data.partition(b"\r\n\r\n")
    match = HEAD.fullmatch(head)
    if not end or match is None:
        return None
    lines = [line.partition(b":") for line in match[2].split(b"\r\n")[1:]]
    headers = [(name.lower(), value.strip()) for name, _, value in lines]
    found = dict(headers)
    if (
        len(found) < len(headers)  # two lengths, perhaps
        or found.keys() & UNUSUAL
        or found.get(b"connection", b"keep-alive").lower() not in (b"keep-alive", b"close")
        or found.get(b"content-length") != b"%d" % len(body)
    ):
        return None
    return {
        "type": "http",
        "method": "POST",
        "path": unquote(match[1].decode("ascii", "replace")),
        "headers": headers,
    }


def to_bytes(response: Response, more_headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A response as it is sent."""
    status = b"HTTP/1.1 %d %s\r\n" % (response.status_code, STATUS_PHRASES[response.status_code])
    headers = [b"%s: %s\r\n" % header for header in (*more_headers, *response.raw_headers)]
    return b"".join([status, *headers, b"\r\n", bytes(response.body)])
