"""Logs: a JSON object on each line of stderr, one for each request, and no texts unless they are asked for."""

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
    "formatters": {"lines": {"()": "offramp.serve.logs.Lines"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
    "loggers": {
        name: {"handlers": ["stderr"], "level": "INFO", "propagate": False}
        for name in ("offramp", "uvicorn", "py.warnings")
    },
}
PROBES = {"/health", "/ready", "/metrics"}
"""Asked again and again by machines; logged for debugging only."""

log = logging.getLogger("offramp.serve")


class Lines(logging.Formatter):
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


class Watched:
    """Gives every request an id, and tells what became of it: to the log, and to `count(path, status, seconds)`.

    Endpoints add to the line what they know, in `request.state.told`.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str, int, float], None]) -> None:
        self.app = app
        self.count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, told = time.perf_counter(), 500, dict[str, Any]()
        name = request_id(scope)
        scope.setdefault("state", {}).update(id=name, told=told)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:  # it has been answered with 500; from here on it would only cut the connection
            log.exception("a bug", extra={"fields": {"id": name}})
        finally:
            seconds = time.perf_counter() - start
            self.count(scope["path"], status, seconds)
            told = {
                "id": name,
                "path": scope["path"],
                "status": status,
                "ms": round(1000 * seconds, 2),
                **told,
            }
            level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
            log.log(level, "%s %s", scope["method"], scope["path"], extra={"fields": told})


def request_id(scope: Scope) -> str:
    """The caller's, if it is one, so that logs of several systems can be joined."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else uuid.uuid4().hex
