"""Protocols that the server speaks, one file each. They only translate: every request becomes a call to the same
batcher.

Some protocols share a path; there, the fields of the body decide which of them a request is in.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import Request
from starlette.routing import compile_path

from offramp.serve.error_responses import ErrorShape, Failure, use_shape
from offramp.serve.protocols import cohere, open_inference, own, tei, vllm
from offramp.serve.protocols.base import Body, Operation
from offramp.serve.schema import inline_schema, json_body

JSON = ("application/json",)


@dataclass(frozen=True)
class Route:
    """A path for predictions."""

    path: str
    operations: Mapping[str, Operation]
    """By the field that a body must have. The first that matches is used; `""` matches every body."""
    media_types: tuple[str, ...] = JSON

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return compile_path(self.path)[0]

    @property
    def description(self) -> str:
        """For the OpenAPI description."""
        protocols = dict.fromkeys(operation.protocol for operation in self.operations.values())
        return f"Classify texts or rank documents, each with its own exit layer. Protocols: {', '.join(protocols)}."

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the body, and of the variable parts of the path."""
        kinds = dict.fromkeys(operation.request for operation in self.operations.values())
        parts = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", self.path)
        ]
        return {"parameters": parts, **json_body({"anyOf": [inline_schema(kind) for kind in kinds]})}

    async def use_errors(self, request: Request) -> None:
        """For errors from before the body is read."""
        use_shape(request, self.errors)

    def errors(self, failure: Failure) -> tuple[int, dict[str, Any]]:
        """With the fields of every operation; where they conflict, and for the status, the last one's."""
        status, content = failure.status, dict[str, Any]()
        for operation in self.operations.values():
            status, fields = operation.errors(failure)
            content |= fields
        return status, content

    def choose(self, body: Body) -> Operation:
        return next(operation for name, operation in self.operations.items() if not name or body.has(name))


PREDICT = Route("/predict", {"texts": own.PREDICT, "inputs": tei.PREDICT, "": own.PREDICT})
OTHERS = (
    Route("/", {"query": tei.RERANK, "": tei.PREDICT}),
    Route("/invocations", {"query": tei.RERANK, "inputs": tei.PREDICT, "": own.PREDICT}),
    Route("/rerank", {"texts": tei.RERANK, "": cohere.RERANK}),
    Route("/v1/rerank", {"": cohere.RERANK}),
    Route("/v2/rerank", {"": cohere.RERANK}),
    Route("/classify", {"inputs": tei.PREDICT, "": vllm.CLASSIFY}),
    *(
        Route(f"/v2/models/{{name}}{version}/infer", {"": open_inference.INFER}, open_inference.MEDIA_TYPES)
        for version in ("", "/versions/{version}")
    ),
)


def shape_of(path: str) -> ErrorShape | None:
    """The errors at this path from before the body is read; None if it does not take requests for predictions."""
    return next((route.errors for route in (PREDICT, *OTHERS) if route.pattern.match(path)), None)
