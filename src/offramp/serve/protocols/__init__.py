"""Protocols that the server speaks. They only translate: every request becomes a call to the same batcher.

Some protocols share a path; there, the fields of the body decide which of them a request is in.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.routing import compile_path

from offramp.serve.error_responses import ErrorShape, Failure
from offramp.serve.protocols import hugging_face, native, open_inference, rerank, vllm
from offramp.serve.protocols.base import Body, Operation, ServedModel
from offramp.serve.protocols.native import PredictResponse, TagResponse, request_schema

JSON = ("application/json",)


@dataclass(frozen=True)
class Route:
    """A path for predictions."""

    path: str
    operations: Mapping[str, Operation]
    """By the field that a body must have. The first that matches is used; `""` matches every body."""
    media_types: tuple[str, ...] = JSON
    response: type[BaseModel] | None = None
    """The JSON of a reply in the native protocol, which is described in full."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return compile_path(self.path)[0]

    @property
    def description(self) -> str:
        """For the OpenAPI description."""
        protocols = dict.fromkeys(operation.protocol for operation in self.operations.values())
        return f"Predictions, each from its own exit layer. Protocols: {', '.join(protocols)}."

    def openapi(self, model: ServedModel) -> dict[str, Any]:
        """The OpenAPI description of the body, and of the variable parts of the path."""
        requests = dict.fromkeys(operation.request for operation in self.operations.values())
        if self.response:
            info, (request, *_) = model.runner.runtime.info, requests
            schema = request_schema(request, model.policies, info.exits, info.trained_on_pairs)
        else:
            schema = {"anyOf": [inline_schema(request) for request in requests]}
        parts = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", self.path)
        ]
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {"parameters": parts, "requestBody": body}

    async def use_errors(self, request: Request) -> None:
        """For errors from before the body is read."""
        request.state.error_shape = self.errors

    def errors(self, failure: Failure) -> tuple[int, dict[str, Any]]:
        """With the fields of every operation; where they conflict, and for the status, the last one's."""
        status, content = failure.status, dict[str, Any]()
        for operation in self.operations.values():
            status, fields = operation.errors(failure)
            content |= fields
        return status, content

    def choose(self, body: Body) -> Operation:
        return next(operation for name, operation in self.operations.items() if not name or body.has(name))


def inline_schema(kind: type[BaseModel]) -> Any:
    """The JSON schema of a model, with those of its fields in place of references to them."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inline(definitions[value["$ref"].rpartition("/")[2]])
        return {name: inline(item) for name, item in value.items()}

    return inline(schema)


INFER = tuple(
    Route(f"/v2/models/{{name}}{version}/infer", {"": open_inference.INFER}, open_inference.MEDIA_TYPES)
    for version in ("", "/versions/{version}")
)
CLASSIFY = (
    Route(
        "/predict",
        {"texts": native.PREDICT, "inputs": hugging_face.PREDICT, "": native.PREDICT},
        response=PredictResponse,
    ),
    Route("/", {"query": hugging_face.RERANK, "": hugging_face.PREDICT}),
    Route("/invocations", {"query": hugging_face.RERANK, "inputs": hugging_face.PREDICT, "": native.PREDICT}),
    Route("/rerank", {"texts": hugging_face.RERANK, "": rerank.RERANK}),
    Route("/v1/rerank", {"": rerank.RERANK}),
    Route("/v2/rerank", {"": rerank.RERANK}),
    Route("/classify", {"inputs": hugging_face.PREDICT, "": vllm.CLASSIFY}),
    *INFER,
)
"""The paths of a model for classification, regression or ranking."""
TAG = (
    Route("/tag", {"": native.TAG}, response=TagResponse),
    Route("/predict", {"inputs": hugging_face.TAG, "": native.TAG}),
    Route("/", {"": hugging_face.TAG}),
    Route("/invocations", {"inputs": hugging_face.TAG, "": native.TAG}),
    *INFER,
)
"""Those of a model that tags tokens."""


def shape_of(routes: Iterable[Route], path: str) -> ErrorShape | None:
    """The errors at this path from before the body is read; None if it does not take requests for predictions."""
    return next((route.errors for route in routes if route.pattern.match(path)), None)
