"""Bodies: reads the bodies of requests, which clients may send slowly or never finish."""

import asyncio
from collections.abc import Collection

from fastapi import HTTPException, Request

STALL = 1.0
"""Seconds. If the time limit of a body is noticed this much too late, the server had no CPU and may not have read
what had arrived, so the time starts again."""


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
