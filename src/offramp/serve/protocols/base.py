"""What the protocols share: the body of a request, and the call for the batcher that it becomes."""

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

import numpy as np
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from offramp.errors import BadOption, NotFinite, UnknownName
from offramp.inference import Prediction
from offramp.inference.runner import Runner
from offramp.inference.tagger import Spans
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, SINGLE_LABEL, Problem
from offramp.serve.batcher import Batcher, Reply, Request
from offramp.serve.error_responses import ErrorShape, MalformedJson, error_response
from offramp.serve.logs import RequestTrace

Activation = Literal["sigmoid", "softmax", "none"]
MOST_LAYERS = 512
"""How many exit layers a header lists; proxies limit its length."""
HOUR_MS = 3_600_000

Model = TypeVar("Model", bound=BaseModel)


class Json(BaseModel):
    """Fields have exactly their types. Unknown ones are ignored, as by other servers."""

    model_config = ConfigDict(strict=True)


class ExitOptions(Json):
    """Where texts may exit."""

    policy: str | None = Field(
        default=None, description="Replaces the server's policy; one of those that /info lists as allowed."
    )
    max_layer: int | None = Field(default=None, description="Every text exits at this layer at the latest.")
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        le=HOUR_MS,
        description="After this time, return the prediction of the last exit passed; not with `trace`.",
    )


@dataclass
class WorkerState:
    """What its process knows of the server around a model."""

    worker_missing: bool = False
    """A worker that died cannot be replaced."""
    stopping: bool = False


@dataclass(frozen=True)
class ServedModel:
    name: str
    any_name: bool
    """Whether requests may name any model."""
    batcher: Batcher
    policies: Mapping[str, Policy]
    """Those that requests may name, unless their rung is forbidden."""
    state: WorkerState

    @property
    def fault(self) -> str:
        """Why it is not ready for requests; empty if it is."""
        if not self.batcher.healthy:
            return "the model failed its test; see the server's log."
        if self.state.stopping:
            return "the server is stopping."
        if self.state.worker_missing:
            return "a worker has died and cannot be replaced; see the server's log."
        return ""

    @property
    def runner(self) -> Runner:
        return self.batcher.runner

    @property
    def labels(self) -> tuple[str, ...]:
        return self.runner.runtime.info.labels

    @property
    def problem(self) -> Problem:
        return self.runner.runtime.info.problem

    def check_name(self, name: str | None) -> None:
        """A request may omit the name; naming another model is an error, unless any name is accepted."""
        if not self.any_name and name not in (None, self.name):
            raise UnknownName(f"the model {name!r} is not served here; this is {self.name!r}.")

    @property
    def allowed(self) -> list[str]:
        """The policies that a request may name now."""
        forbidden = {str(policy) for policy in self.batcher.ladder.forbidden}
        return [name for name in self.policies if name not in forbidden]

    def request(
        self, texts: Sequence[Any], body: "Body", options: ExitOptions | None = None, **fields: Any
    ) -> Request:
        """A request for the batcher, which checks the texts. Protocols with no place for `options` in the body take
        them from headers; `fields` are further fields of the request."""
        options = options or body.header_options()
        policy, allowed = options.policy, self.allowed
        if policy is not None and policy not in allowed:
            others = f", or use one of {', '.join(allowed)}" if allowed else ""
            raise BadOption(f"policy {policy} is not allowed; omit it{others}.")
        return Request(
            texts,
            policy=None if policy is None else self.policies[policy],
            max_layer=options.max_layer,
            deadline_ms=options.deadline_ms,
            arrived=body.arrived,
            trace_context=body.trace_context,
            **fields,
        )

    def scores(self, prediction: Prediction, activation: Activation | None = None) -> list[float]:
        """A score for each label. By default the probabilities: a softmax over several labels of which one is
        right, a sigmoid of every label otherwise."""
        if activation == "none":
            return [*prediction.logits]
        if activation is None:
            one_is_right = self.problem == SINGLE_LABEL and len(self.labels) > 1
            activation = "softmax" if one_is_right else "sigmoid"
        problem = SINGLE_LABEL if activation == "softmax" else MULTI_LABEL
        scores: list[float] = problem.probabilities(np.array([prediction.logits]))[0].tolist()
        return scores


@dataclass(frozen=True)
class Body:
    """A request as it came."""

    content: bytes
    headers: Mapping[str, str]
    id: str
    path_parts: Mapping[str, str]
    """The variable parts of the path."""
    arrived: float
    """In seconds of `time.monotonic`."""
    trace_context: RequestTrace

    @cached_property
    def json(self) -> Any:
        return parse_json(self.content)

    def has(self, name: str) -> bool:
        return isinstance(self.json, dict) and name in self.json

    def header_options(self) -> ExitOptions:
        headers = {
            name: self.headers.get(f"x-offramp-{name.replace('_', '-')}") for name in ExitOptions.model_fields
        }
        options = {name: unquote(value) for name, value in headers.items() if value is not None}
        return validate(ExitOptions, options, strict=False)  # a header is text


@dataclass(frozen=True)
class Call:
    """A request, translated for the batcher, and how to translate the reply back."""

    request: Request
    respond: Callable[[Reply], Response]
    has_nulls: bool = False
    """Whether the response may have null for numbers that are not finite; if not, they are an error."""


@dataclass(frozen=True)
class Operation:
    """A kind of request in a protocol."""

    protocol: str
    request: type[BaseModel]
    """The JSON that it takes."""
    translate: Callable[[ServedModel, Body], Call]
    errors: ErrorShape


def parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"the body is not JSON ({error}).") from None


def validate(kind: type[Model], value: Any, strict: bool | None = None) -> Model:
    """`value` as a model of this kind; a `BadOption` names the first bad field."""
    try:
        return kind.model_validate(value, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if first["type"] == "model_type" and not first["loc"]:
            raise BadOption("the body is not a JSON object.") from None
        place = first["loc"][0] if first["loc"] else "the body"
        raise BadOption(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None


def json_response(content: Any, reply: Reply) -> Response:
    return Response(to_json(content), headers=exit_headers(reply), media_type="application/json")


def exit_headers(reply: Reply) -> dict[str, str]:
    """What early exits did, outside the body: strict clients refuse fields that they do not know."""
    layers = [prediction.layer for prediction in reply.predictions]
    headers = {
        "x-offramp-policy": quote(reply.policy, safe=string.punctuation.replace("%", "") + " "),
        "x-offramp-mean-layer": f"{reply.mean_layer:.2f}",
    }
    if reply.rung is not None:
        headers["x-offramp-rung"] = str(reply.rung)
    if len(layers) <= MOST_LAYERS:
        headers["x-offramp-layers"] = ",".join(map(str, layers))
    return headers


def check_finite(reply: Reply) -> None:
    """Raises `NotFinite` if a prediction has NaN or infinity, which JSON does not know."""
    for index, prediction in enumerate(reply.predictions):
        if isinstance(prediction, Spans):
            finite = prediction.finite or len(prediction) > 0
        else:
            finite = isfinite(sum(prediction.logits))
        if not finite:
            raise NotFinite(f"the model returned NaN or infinity for item {index}.")


def in_utf16(reply: Reply, texts: Sequence[str]) -> Reply:
    """With the offsets of spans in units of UTF-16."""
    pairs = zip(texts, reply.predictions, strict=True)
    return replace(reply, predictions=[spans.in_utf16(text) for text, spans in pairs])


def ready_response(model: ServedModel, request: HttpRequest, **content: Any) -> Response:
    if fault := model.fault:
        return error_response(request, 503, fault)
    return JSONResponse({**content, "ready": True})
