"""How requests are refused: a status for each kind of error, and one sentence in JSON."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from offramp.errors import (
    BadData,
    BadOption,
    BadPolicy,
    Draining,
    Incompatible,
    OfframpError,
    Overloaded,
    RunFailed,
    TooLarge,
)
from offramp.serve.logs import log
from offramp.serve.schema import MalformedJson, Problem

STATUS: dict[type[OfframpError], int] = {
    MalformedJson: 400,
    TooLarge: 413,
    BadData: 422,
    BadOption: 422,
    BadPolicy: 422,
    Incompatible: 422,
    Overloaded: 429,
    RunFailed: 500,
    Draining: 503,
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the description of an endpoint."""
    return {status: {"model": Problem} for status in statuses}


def problem(
    request: Request, status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    # escaped, as a sentence may quote what is not valid Unicode
    content = json.dumps({"error": sentence, "id": request.state.id})
    return Response(content, status, headers, "application/json")


async def explain_error(request: Request, error: Exception) -> Response:
    request.state.told["error"] = type(error).__name__
    if type(error) not in STATUS:
        log.error("no answer", exc_info=error, extra={"fields": {"id": request.state.id}})
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return problem(request, STATUS.get(type(error), 500), str(error), headers)  # type: ignore[arg-type]


async def explain_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: "there is nothing here; /docs tells what there is.", 405: "this takes another method."}
    return problem(request, error.status_code, known.get(error.status_code, error.detail), error.headers)


async def explain_bug(request: Request, error: Exception) -> Response:
    """Which is raised again, and logged with its traceback."""
    request.state.told["error"] = type(error).__name__
    return problem(request, 500, "the server failed; its log says how.")


EXPLANATIONS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    OfframpError: explain_error,
    HTTPException: explain_status,
    Exception: explain_bug,
}
