"""Logs: one JSON object per line on stderr, one line per request, without texts unless --log-texts is given. Requests
that are refused before they are read share a line per second.

Requests also join the traces of their callers, by the header `traceparent` of W3C Trace Context and by spans of
OpenTelemetry. Recent versions of FastAPI make a span for each request, if the OpenTelemetry SDK is set up; the spans
here are inside that one. Without OpenTelemetry, the caller's `traceparent` is still logged and returned.
"""

import asyncio
import errno
import json
import logging
import re
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import offramp
from offramp.wording import count

try:
    from opentelemetry import context, propagate, trace

    TRACER: Any = trace.get_tracer("offramp.serve", offramp.__version__)
except ImportError:
    TRACER = None

TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "offramp.serve.logs.JsonFormatter"}},
    "filters": {"accept": {"()": "offramp.serve.logs.AcceptErrors"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {
        name: {"handlers": ["stderr"], "level": "INFO", "propagate": False, "filters": filters}
        for name, filters in {"offramp": [], "uvicorn": [], "asyncio": ["accept"]}.items()
    },
}
PROBES = ("/health", "/ready", "/metrics", "/ping", "/live")
"""Ends of paths that machines poll; logged at debug level only."""
REFUSED_SECONDS = 1.0
"""Seconds of which requests that are refused unread are logged together."""
REPEAT = 60
"""Seconds after which asyncio's last message may be logged again."""

log = logging.getLogger("offramp.serve")


def log_warnings() -> None:
    """Makes warnings lines of the log from now on: what they say, without the place in the code."""

    def show(message: Warning | str, *_place: Any, **_more: Any) -> None:
        log.warning("%s", message)

    warnings.showwarning = show


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class AcceptErrors(logging.Filter):
    """Drops repeated messages of asyncio: without free file descriptors it logs thousands of equal ones a second."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.since = "", 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and error.errno == errno.EINVAL and "accept" in record.getMessage():
            return False  # the parent has stopped listening, and the signal to stop is under way
        kind = f"{type(error).__name__} {error}" if error else record.getMessage()
        if kind == self.last and record.created - self.since < REPEAT:
            return False
        self.last, self.since = kind, record.created
        return True


class RequestLog:
    """Middleware that gives every request an id, and logs it; `count(status, seconds)` is called for
    predictions, which are the only requests with POST.

    Endpoints may add fields to the line in `request.state.log_fields`.
    """

    def __init__(self, app: ASGIApp, count: Callable[[int, float], None]) -> None:
        self.app = app
        self.count = count
        self.refused = Counter[tuple[int, str]]()
        """Requests that were refused unread and are not logged yet, by status and name of the error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry, status = self.begin(scope), 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *entry.headers]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:  # already answered with 500; raising would only cut the connection
            log.exception("unhandled exception", extra={"fields": {"id": entry.id}})
        finally:
            entry.end(status)

    def begin(self, scope: Scope) -> "LoggedRequest":
        headers = Headers(scope=scope)
        entry = LoggedRequest(scope, self.count, request_id(headers), RequestTrace(headers))
        state = scope.setdefault("state", {})
        state.setdefault("arrived", time.monotonic())  # the gate knows better
        state.update(id=entry.id, log_fields=entry.fields, trace=entry.trace)
        return entry

    def end_unread(self, entry: "LoggedRequest", status: int) -> None:
        """Counts a request that is refused before it is read. A line for each would cost more than the refusal."""
        self.count(status, time.perf_counter() - entry.start)
        if not self.refused:
            asyncio.get_running_loop().call_later(REFUSED_SECONDS, self.log_refused)
        self.refused[status, entry.fields["error"]] += 1

    def log_refused(self) -> None:
        for (status, error), number in self.refused.items():
            fields = {"refused": number, "status": status, "error": error}
            log.info("refused %s unread", count(number, "request"), extra={"fields": fields})
        self.refused.clear()


@dataclass
class LoggedRequest:
    """A request under way, to be logged at its end."""

    scope: Scope
    count: Callable[[int, float], None]
    id: str
    trace: "RequestTrace"
    fields: dict[str, Any] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """For the response."""
        headers = [(b"x-request-id", self.id.encode())]
        if self.trace.traceparent:
            headers.append((b"traceparent", self.trace.traceparent.encode()))
        return headers

    def end(self, status: int) -> None:
        seconds, path, method = time.perf_counter() - self.start, self.scope["path"], self.scope["method"]
        if method == "POST":
            self.count(status, seconds)
        if client := self.scope.get("client"):
            self.fields["client"] = client[0]
        level = logging.DEBUG if is_probe(self.scope) else logging.INFO
        if log.isEnabledFor(level):
            fields = {"id": self.id, "path": path, "status": status, "ms": round(1000 * seconds, 2)}
            fields |= self.trace.ids
            log.log(level, "%s %s", method, path, extra={"fields": fields | self.fields})


def is_probe(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.endswith(PROBES)


def request_id(headers: Mapping[str, str]) -> str:
    """The caller's `X-Request-ID` if it is well-formed, so that logs of several systems can be joined."""
    id = headers.get("x-request-id", "")
    return id if re.fullmatch(r"[\w.:-]{1,64}", id, re.ASCII) else uuid.uuid4().hex


class RequestTrace:
    """The trace that a request is part of, if any."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        traceparent = headers.get("traceparent", "")
        self.traceparent = traceparent if TRACEPARENT.fullmatch(traceparent) else ""
        """Names the trace, and the span of the request, or that of the caller if the request has none."""
        self.request: Any = None
        """OpenTelemetry's context, with that span."""

    def enter(self) -> None:
        """Called in the request's own task, after its span has begun."""
        if TRACER is None:
            return
        self.request = context.get_current()
        if not trace.get_current_span().get_span_context().is_valid:
            self.request = propagate.extract(self.headers)
        span = trace.get_current_span(self.request).get_span_context()
        if span.is_valid:
            self.traceparent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"

    def add(self, name: str, start: float, end: float, **attributes: Any) -> None:
        """A part of the request, in seconds of `time.monotonic`; the request may have ended before."""
        if self.request is not None:
            attributes = {f"offramp.{key}": value for key, value in attributes.items() if value is not None}
            span = TRACER.start_span(name, self.request, attributes=attributes, start_time=wall_time(start))
            span.end(wall_time(end))

    @property
    def ids(self) -> dict[str, str]:
        """For the log."""
        parts = self.traceparent.split("-")
        return {"trace_id": parts[1], "span_id": parts[2]} if self.traceparent else {}


def wall_time(monotonic: float) -> int:
    """In nanoseconds since 1970."""
    return time.time_ns() - int(1e9 * (time.monotonic() - monotonic))
