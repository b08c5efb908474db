"""Security: refuses requests for other hosts, without an API key, or whose bodies are too large or too slow."""

import asyncio
import hmac
import ipaddress
import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from offramp.errors import BadOption
from offramp.serve.error_responses import error_response
from offramp.serve.logs import log

STALL = 1.0
"""Seconds. If the time limit of a body is noticed this much too late, the server had no CPU and may not have read
what had arrived, so the time starts again."""
MISDIRECTED_REQUEST = 421
ANY = "*"
LOOPBACK = ["localhost", "127.0.0.1", "::1"]


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


class Keys:
    """API keys, of which requests must send one.

    Args:
        variable: the environment variable with the keys, separated by white space.
        file: has the keys, separated by white space; read again when it has changed.
    """

    def __init__(self, variable: str | None, file: Path | None) -> None:
        self.file = file
        self.fixed = os.environ.get(variable, "").encode().split() if variable else []
        if variable and not self.fixed:
            raise BadOption(f"api_key_env={variable}: the variable is not set, or empty.")
        self.version: tuple[int, ...] | None = None
        """Identifies the contents of the file that were read; empty if it could not be."""
        self.of_file: list[bytes] = []
        if problem := self.read_file():
            raise BadOption(f"api_key_file={file}: {problem}.")

    def __bool__(self) -> bool:
        """Whether requests must send a key."""
        return bool(self.fixed or self.file)

    async def check(
        self, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
    ) -> None:
        # starlette decodes headers as Latin-1, whatever bytes were sent
        if sent is None or not self.accept(sent.credentials.encode("latin-1")):
            message = "send a key of the server in the header `Authorization: Bearer KEY`."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    def accept(self, sent: bytes) -> bool:
        if problem := self.read_file():
            log.error("the keys in %s stay as they were: %s", self.file, problem)
        # all are compared, so that the time does not tell which one is similar
        return sum(hmac.compare_digest(sent, key) for key in (*self.fixed, *self.of_file)) > 0

    def read_file(self) -> str:
        """Why a new version of the file cannot be used; such a version is reported once. Empty if all is well."""
        if self.file is None:
            return ""
        try:
            stat = self.file.stat()
            version = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if version == self.version:
                return ""
            self.version = version
            keys = self.file.read_bytes().split()
        except OSError as error:
            reported, self.version = self.version == (), ()
            return "" if reported else error.strerror or str(error)
        if not keys:
            return "it has no keys"
        self.of_file = keys
        return ""


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
