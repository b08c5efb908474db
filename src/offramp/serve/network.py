"""Network: clients may be silent, slow or many, and never keep others out.

Every connection takes a file descriptor. At the limit, a new one takes the place of the one that has kept the server
waiting for longest.

Reading, routing and answering a request takes the event loop about as long as a model with early exits takes to run
it. So under load it may be the loop that falls behind, and then requests and probes wait in the kernel, where nobody
counts them. The gate looks at the first bytes of a request for predictions before uvicorn parses them. What the queue
has no room for it refuses at once, for a small part of the cost. It lets in only a few requests in each turn of the
loop, so that there is always time for new connections, refusals and probes.
"""

import asyncio
import fcntl
import re
import resource
import select
import socket
import termios
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from email.utils import formatdate
from typing import Any, cast
from urllib.parse import unquote

import h11
from fastapi import Request, Response
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from offramp.errors import BadOption, OfframpError
from offramp.serve.error_responses import ErrorShape, offramp_error_response
from offramp.serve.logs import RequestLog

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before the open ones are counted again. As closing takes the event loop a few
turns, a few times this many may be open beyond the limit. asyncio uses it for the kernel's queue too, where more may
wait."""
REFUSED_AT_ONCE = 32
"""Connections that are refused in one turn of the event loop."""
LET_IN_AT_ONCE = 4
"""Requests that the gate lets in in one turn of the event loop."""
REQUEST = 1 << 16
"""Bytes of a request that can be refused as its connection is accepted."""
BACKLOG = 2048
"""Connections that may wait in the kernel's queue."""
OWN_FILES = 256
"""Descriptors that a worker needs besides: for libraries, weights, logs, metrics, and a few connections too many."""
MOST_FILES = 1 << 20
"""Where the system sets no limit."""
KEEP_ALIVE = 75
"""Seconds between two requests of a connection: more than most clients and proxies (60) wait until they close it
themselves, so that they do not send a request while the server closes it."""
ACCEPT_SECONDS = 2.0
"""How long connections in the kernel's queue may take to be accepted when the server stops."""
LINGER = 1.0
"""Seconds for which a closed connection still reads, and forgets, what the client sends."""
SPARE = 1536
"""Connections by default, beyond one for each text that may wait: clients keep some open between requests, more so if
many are refused, and only silent ones should be closed."""
HEAD = re.compile(rb"POST ([^\s?]+)\S* HTTP/1\.1((?:\r\n[\w!#$%&'*+.^`|~-]+:[^\r\n\0]*)*)", re.ASCII)
UNUSUAL = {b"transfer-encoding", b"expect", b"upgrade"}
"""Headers of requests that only uvicorn reads."""
CLOSE = (b"connection", b"close")


def bind(host: str, port: int, option: str = "port") -> socket.socket:
    """Does not listen yet: a connection before the model is loaded is refused rather than kept waiting."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise BadOption(f"host={host} cannot be used: {error.strerror}.") from None
    # asyncio sets TCP_NODELAY only if the protocol is named; without it, responses are delayed by 40 ms
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise BadOption(
            f"{option}={port} of {host} cannot be used: {error.strerror}; choose another, such as "
            f"{option}={port + 1}."
        ) from None
    return listener


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


class Listener(socket.socket):
    """Refuses requests on new connections that the gate has no room for, as it accepts them: making one of asyncio's
    connections first would take several times as long."""

    def __init__(self, listener: socket.socket, gate: "Gate | None") -> None:
        super().__init__(fileno=listener.detach())
        self.gate = gate

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(REFUSED_AT_ONCE):
            connection, address = super().accept()
            problem = self.gate and self.gate.problem
            if not problem or not self.refuse(connection, problem):
                return connection, address
        raise BlockingIOError  # the rest in the next turn of the event loop

    def refuse(self, connection: socket.socket, problem: OfframpError) -> bool:
        """Whether it was: only if the whole request has arrived. Else nothing was read."""
        assert self.gate
        try:
            data = connection.recv(REQUEST, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            response = self.gate.refusal(data, problem)
            if response is None:
                return False
            connection.recv(len(data))  # the kernel resets a connection with unread bytes
            date = (b"date", formatdate(usegmt=True).encode())
            connection.send(to_bytes(response, [date, CLOSE]), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the client has disconnected
        connection.close()
        return True


class LimitedConnection(H11Protocol):
    """uvicorn's connection, with a limit on their number and on the time until the head of a request is complete.

    No limit applies while bytes have arrived that are still unread: then the client waits for the server.

    Args:
        most: how many there may be.
        header_seconds: how long the head of a request may take, from the connection or, later, from its first byte.
        by_age: all of the same server, those that have waited for a request for longest first.
        gate: where requests for predictions wait for their turn.
    """

    held: bytes | None = None
    """What was received of a request that waits at the gate."""
    arrived = 0.0
    """When its first bytes were received, by `time.monotonic`."""

    def __init__(
        self,
        *arguments: Any,
        most: int,
        header_seconds: float,
        by_age: dict["LimitedConnection", None],
        gate: "Gate | None" = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.most, self.header_seconds, self.by_age, self.gate = most, header_seconds, by_age, gate
        self.head_timer: asyncio.TimerHandle | None = None

    @property
    def waits_for_client(self) -> bool:
        """Whether no request has arrived completely that is not yet answered."""
        return (self.is_idle or self.cycle.more_body) and not self.has_unread

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun that is not yet answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def has_unread(self) -> bool:
        """Whether bytes wait at the gate, or in the kernel: the process was busy, or had no CPU, since they
        arrived."""
        if self.held is not None:
            return True
        if self.transport.is_closing():
            return False
        return any(fcntl.ioctl(self.transport.get_extra_info("socket"), termios.FIONREAD, bytes(4)))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, LingeringTransport(transport, self.loop)))
        self.by_age[self] = None
        self.wait_for_head()
        self.check_limit()

    def check_limit(self) -> None:
        if len(self.by_age) > self.most:
            # timers run after what has arrived was read, so that requests of a burst of connections are seen first
            self.loop.call_later(0, self.make_room)

    def make_room(self) -> None:
        if len(self.by_age) > self.most:
            oldest = next((other for other in self.by_age if other.waits_for_client), None)
            if oldest:
                oldest.transport.abort()
                del self.by_age[oldest]  # now: `connection_lost` comes later

    def wait_for_head(self) -> None:
        self.head_timer = self.loop.call_later(self.header_seconds, self.close_without_head, self.cycle)

    def close_without_head(self, last: object) -> None:
        if self.cycle is last:
            if self.has_unread:
                self.head_timer = self.loop.call_later(0, self.close_without_head, last)
            else:
                self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        if self.has_unread:
            self.timeout_keep_alive_task = self.loop.call_later(0, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.held is not None:
            self.held += data
            self.transport.pause_reading()
            return
        if self.head_timer is None:
            self.wait_for_head()
        if self.gate and self.is_between_requests and data.startswith(b"POST "):
            problem = self.gate.problem
            response = problem and self.gate.refusal(data, problem)
            if response:
                self.respond(response)
            else:
                self.held, self.arrived = data, time.monotonic()
                self.gate.wait_for_turn(self)
        else:
            super().data_received(data)

    @property
    def is_between_requests(self) -> bool:
        """Whether the next byte is the first one of a request."""
        return self.is_idle and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def let_in(self) -> None:
        data, self.held = self.held, None
        if data and not self.transport.is_closing():
            self.transport.resume_reading()
            super().data_received(data)
            if not self.is_idle:
                self.scope["state"]["arrived"] = self.arrived
            self.check_limit()  # while held, it could not be closed

    def respond(self, response: Response) -> None:
        """To a request that uvicorn has not seen."""
        self.transport.write(to_bytes(response, self.server_state.default_headers))
        self.on_response_complete()
        if CLOSE in response.raw_headers:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.stop_waiting_for_head()
        if self in self.by_age:  # else it was closed to make room
            del self.by_age[self]
            self.by_age[self] = None
        if self.cycle and self.cycle.more_body:
            self.wait_for_head()
        super().on_response_complete()

    def shutdown(self) -> None:
        if self.is_idle and self.has_unread:
            self.loop.call_later(0, self.shutdown)  # once it was read
        else:
            super().shutdown()

    def stop_waiting_for_head(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting_for_head()
        self.by_age.pop(self, None)
        super().connection_lost(exc)


class LingeringTransport:
    """A transport that sends the end of the connection first, and closes it when the client has done the same.

    The kernel resets a connection that is closed before all that arrived was read, and the client then loses even
    responses that it had received.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport, self.loop = transport, loop
        self.lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        return self.lingers or self.transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self.lingers = True
            self.transport.write_eof()
            self.transport.resume_reading()
            self.loop.call_later(LINGER, self.transport.abort)


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
        self.waiting: deque[LimitedConnection] = deque()

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
        request.state.error_shape = shape
        response = offramp_error_response(request, problem)
        response.raw_headers += entry.headers
        if request.headers.get("connection", "").lower() == "close":
            response.raw_headers.append(CLOSE)
        self.log.end_unread(entry, response.status_code)
        return response

    def wait_for_turn(self, connection: LimitedConnection) -> None:
        self.waiting.append(connection)
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self.let_some_in)

    def let_some_in(self) -> None:
        for _ in range(min(LET_IN_AT_ONCE, len(self.waiting))):
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
    by_name = dict(headers)
    if (
        len(by_name) < len(headers)  # two lengths, perhaps
        or by_name.keys() & UNUSUAL
        or by_name.get(b"connection", b"keep-alive").lower() not in (b"keep-alive", b"close")
        or by_name.get(b"content-length") != b"%d" % len(body)
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


def stop_listening(listener: socket.socket) -> None:
    """Refuses new connections. Waits, but not for long, until those that the kernel has are accepted: it would reset
    them. Other threads or processes accept them."""
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return
    listener.listen(0)
    end = time.monotonic() + ACCEPT_SECONDS
    while select.select([listener], [], [], 0)[0] and time.monotonic() < end:
        time.sleep(0.01)
    with suppress(OSError):  # closing is not enough: every worker has the same socket
        listener.shutdown(socket.SHUT_RDWR)


def wait_until_stopped(listener: socket.socket) -> None:
    """Waits, but not for long, until another process has stopped listening."""
    end = time.monotonic() + ACCEPT_SECONDS
    while listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and time.monotonic() < end:
        time.sleep(0.01)
