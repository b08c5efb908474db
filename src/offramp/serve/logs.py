"""Logs: one JSON object per line on stderr, one line per request, without texts unless --log-texts is given."""

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "offramp.serve.logs.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {
        name: {"handlers": ["stderr"], "level": "INFO", "propagate": False}
        for name in ("offramp", "uvicorn", "py.warnings")
    },
}
PROBES = {"/health", "/ready", "/metrics"}
"""Polled by machines; logged at debug level only."""

log = logging.getLogger("offramp.serve")


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


class RequestLog:
    """Middleware that gives every request an id, logs it, and calls `count(path, status, seconds)`.

    Endpoints may add fields to the line in `request.state.log_fields`.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str, int, float], None]) -> None:
        self.app = app
        self.count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, more_fields = time.perf_counter(), 500, dict[str, Any]()
        id = request_id(scope)
        scope.setdefault("state", {}).update(id=id, log_fields=more_fields)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:  # already answered with 500; raising would only cut the connection
            log.exception("unhandled exception", extra={"fields": {"id": id}})
        finally:
            seconds, path = time.perf_counter() - start, scope["path"]
            self.count(path, status, seconds)
            fields = {"id": id, "path": path, "status": status, "ms": round(1000 * seconds, 2), **more_fields}
            level = logging.DEBUG if path in PROBES else logging.INFO
            log.log(level, "%s %s", scope["method"], path, extra={"fields": fields})


def request_id(scope: Scope) -> str:
    """The caller's `X-Request-ID` if it is well-formed, so that logs of several systems can be joined."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else uuid.uuid4().hex
