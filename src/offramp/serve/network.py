"""Network: clients may be silent, slow, many, or sent from elsewhere, and never keep others out.

Every connection takes a file descriptor. At the limit, a new one takes the place of the one that has kept the server
waiting for longest. Bodies have limits in bytes and seconds, and requests for other hosts are refused.
"""

import asyncio
import fcntl
import ipaddress
import resource
import select
import socket
import termios
import time
from collections.abc import Collection
from contextlib import suppress
from email.utils import formatdate
from typing import Any, cast
from urllib.parse import urlsplit

import h11
from fastapi import HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from offramp.errors import BadOption, OfframpError
from offramp.serve.error_responses import error_response
from offramp.serve.gate import CLOSE, Gate, to_bytes

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before the open ones are counted again. As closing takes the event loop a few
turns, a few times this many may be open beyond the limit. asyncio uses it for the kernel's queue too, where more may
wait."""
REFUSED_AT_ONCE = 32
"""Connections that are refused in one turn of the event loop."""
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
STALL = 1.0
"""Seconds. If the time limit of a body is noticed this much too late, the server had no CPU and may not have read
what had arrived, so the time starts again."""
MISDIRECTED_REQUEST = 421
ANY = "*"
LOOPBACK = ["localhost", "127.0.0.1", "::1"]


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

    def __init__(self, listener: socket.socket, gate: Gate | None) -> None:
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
        gate: Gate | None = None,
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


class Bodies:
    """Bodies that are arriving. Each has a limit in bytes and in seconds. All together they have a limit in bytes, at
    which the one that has been arriving for longest is given up: most others will soon be complete.

    Args:
        limit: bytes of one body.
        total: bytes of all that are arriving.
        seconds: from the head of a request to the end of its body.
    """

    def __init__(self, limit: int, total: int, seconds: float) -> None:
        self.limit, self.total, self.seconds = limit, total, seconds
        self.arriving: dict[asyncio.Timeout, int] = {}
        """The bytes of each so far, oldest first."""

    async def read(self, request: Request, media_types: Collection[str]) -> bytes:
        """The whole body, unless it is too large, too slow or declared as another type."""
        content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if content_type not in media_types:
            raise HTTPException(415, "send JSON, with the header `Content-Type: application/json`.")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "send the body as it is, without Content-Encoding.")
        too_large = HTTPException(
            413, f"the body is larger than {self.limit} bytes; send fewer texts at a time."
        )
        if int(request.headers.get("content-length", 0)) > self.limit:
            raise too_large
        body, loop = bytearray(), asyncio.get_running_loop()
        while True:
            end = loop.time() + self.seconds
            timer = asyncio.timeout_at(end)
            try:
                async with timer:
                    async for part in request.stream():
                        body += part
                        if len(body) > self.limit:
                            raise too_large
                        self.arriving[timer] = len(body)
                        self.give_up_oldest()
                return bytes(body)
            except TimeoutError:
                if loop.time() < end + STALL:
                    message = "the body did not arrive in time; send it again, in smaller parts."
                    raise HTTPException(408, message, {"Connection": "close"}) from None
            finally:
                self.arriving.pop(timer, None)

    def give_up_oldest(self) -> None:
        while sum(self.arriving.values()) > self.total:
            oldest = next(iter(self.arriving))
            del self.arriving[oldest]
            if not oldest.expired():
                oldest.reschedule(0)  # the time has passed


class CheckedHeads:
    """Middleware that refuses a request by its head: if it is for a host that is not in `names`, unless this has a
    `*`, or if it has two lengths. `root_path` is the prefix that paths have for clients; a proxy may have removed it.

    A page on the web can make a browser send requests to a server on the same machine, by resolving the page's own
    name to 127.0.0.1 (DNS rebinding). The `Host` header still has that name. Starlette's middleware for this responds
    in plain text and cannot name the flag.

    With Content-Length and Transfer-Encoding, a proxy may see another end of the body than this server, and take the
    rest for a request of its own (RFC 9112, 6.3).
    """

    def __init__(self, app: ASGIApp, names: Collection[str], root_path: str = "") -> None:
        self.app, self.root_path = app, root_path
        self.names = {name.lower().strip("[]") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["root_path"] = self.root_path
        refusal = self.refusal(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def refusal(self, request: Request) -> Response | None:
        headers = request.headers
        host = headers.get("host", "")
        if ANY not in self.names and host_name(host) not in self.names:
            message = f"{host!r} is not a host of this server; start it with --allowed-host to allow it."
            return error_response(request, MISDIRECTED_REQUEST, message)
        if "content-length" in headers and "transfer-encoding" in headers:
            message = "send either Content-Length or Transfer-Encoding, not both."
            return error_response(request, 400, message, {"Connection": "close"})
        return None


def host_name(header: str) -> str | None:
    """Without the port, in lower case.

    >>> host_name("[::1]:8000"), host_name("LocalHost"), host_name("[")
    ('::1', 'localhost', None)
    """
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def default_hosts(address: str) -> list[str]:
    """The names for a server that listens on this address: any, unless only this machine can reach it."""
    return LOOPBACK if ipaddress.ip_address(address).is_loopback else [ANY]
