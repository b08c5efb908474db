"""Telemetry: joins requests to the traces of their callers, by the header `traceparent` of W3C Trace Context and by
spans of OpenTelemetry.

Recent versions of FastAPI make a span for each request, if the OpenTelemetry SDK is set up; the spans here are inside
that one. Without OpenTelemetry, the caller's `traceparent` is still logged and returned.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

import offramp

try:
    from opentelemetry import context, propagate, trace

    TRACER: Any = trace.get_tracer("offramp.serve", offramp.__version__)
except ImportError:
    TRACER = None

TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class RequestTrace:
    """The trace that a request is part of, if any."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        given = headers.get("traceparent", "")
        self.traceparent = given if TRACEPARENT.fullmatch(given) else ""
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
            named = {f"offramp.{key}": value for key, value in attributes.items() if value is not None}
            span = TRACER.start_span(name, self.request, attributes=named, start_time=wall_time(start))
            span.end(wall_time(end))

    @property
    def ids(self) -> dict[str, str]:
        """For the log."""
        parts = self.traceparent.split("-")
        return {"trace_id": parts[1], "span_id": parts[2]} if self.traceparent else {}


def wall_time(monotonic: float) -> int:
    """In nanoseconds since 1970."""
    return time.time_ns() - int(1e9 * (time.monotonic() - monotonic))
