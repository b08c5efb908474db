"""Hosts: refuses requests for other hosts than this server's.

A page on the web can make a browser send requests to a server on the same machine, by resolving the page's own name
to 127.0.0.1 (DNS rebinding). The `Host` header still has that name. Starlette's middleware for this responds in
plain text and cannot name the flag.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from offramp.serve.error_responses import error_response

MISDIRECTED_REQUEST = 421
ANY = "*"
LOOPBACK = ["localhost", "127.0.0.1", "::1"]


class AllowedHosts:
    """Middleware that refuses requests for a host that is not in `names`, unless this has a `*`."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = {name.lower().strip("[]") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ANY not in self.names:
            given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if host_name(given) not in self.names:
                message = f"{given!r} is not a host of this server; start it with --allowed-host to allow it."
                refusal = error_response(Request(scope), MISDIRECTED_REQUEST, message)
                return await refusal(scope, receive, send)
        return await self.app(scope, receive, send)


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
