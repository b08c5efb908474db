"""Error responses: a status for each kind of error, and one sentence in the JSON of the request's protocol."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from offramp.errors import (
    BadData,
    BadOption,
    BadPolicy,
    Draining,
    Incompatible,
    NotFinite,
    OfframpError,
    Overloaded,
    RunFailed,
    TooLarge,
    UnknownName,
)
from offramp.serve.logs import log


class MalformedJson(OfframpError):
    """The body of a request is not JSON."""


STATUS: dict[type[OfframpError], int] = {
    MalformedJson: 400,
    UnknownName: 404,
    TooLarge: 413,
    BadData: 422,
    BadOption: 422,
    BadPolicy: 422,
    Incompatible: 422,
    Overloaded: 429,
    NotFinite: 500,
    RunFailed: 500,
    Draining: 503,
}


@dataclass(frozen=True)
class Failure:
    """What an error response reports."""

    status: int
    message: str
    id: str
    """The id of the request."""
    error: Exception | None = None


ErrorShape = Callable[[Failure], tuple[int, dict[str, Any]]]
"""A protocol's status and JSON for a failure."""


class ErrorResponse(BaseModel):
    error: str = Field(description="What is wrong, in one sentence.")
    id: str = Field(description="The id of the request, as in the server's log.")


def default_shape(failure: Failure) -> tuple[int, dict[str, Any]]:
    return failure.status, {"error": failure.message, "id": failure.id}


def error_models(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI description of an endpoint."""
    return {status: {"model": ErrorResponse} for status in statuses}


def error_response(
    request: Request,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    error: Exception | None = None,
) -> Response:
    shape: ErrorShape = getattr(request.state, "error_shape", default_shape)
    status, content = shape(Failure(status, message, request.state.id, error))
    # json.dumps escapes non-ASCII: a message may quote what is not valid Unicode
    return Response(json.dumps(content), status, headers, "application/json")


async def handle_offramp_error(request: Request, error: Exception) -> Response:
    return offramp_error_response(request, error)


def offramp_error_response(request: Request, error: Exception) -> Response:
    request.state.log_fields["error"] = type(error).__name__
    if type(error) not in STATUS:
        log.error("unexpected error", exc_info=error, extra={"fields": {"id": request.state.id}})
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    status = STATUS.get(type(error), 500)  # type: ignore[arg-type]
    return error_response(request, status, str(error), headers, error)


async def handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "not found; /docs lists all endpoints.", 405: "method not allowed."}
    message = messages.get(error.status_code, error.detail)
    return error_response(request, error.status_code, message, error.headers, error)


async def handle_bug(request: Request, error: Exception) -> Response:
    """Starlette raises it again, so that it is logged with its traceback."""
    request.state.log_fields["error"] = type(error).__name__
    return error_response(request, 500, "internal error; see the server's log.")


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    OfframpError: handle_offramp_error,
    HTTPException: handle_http_error,
    Exception: handle_bug,
}
