"""The JSON of requests and responses; the OpenAPI description at /docs is generated from this."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from offramp.errors import BadOption, OfframpError

TEXT = {"type": "string"}
PAIR = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
TEXTS = {
    "anyOf": [TEXT, *({"type": "array", "items": each, "minItems": 1} for each in (TEXT, PAIR))],
    "description": "One text, a list of texts, or a list of pairs of texts.",
    "examples": ["a gripping film", ["a gripping film", "a dull one"], [["Is it good?", "It is."]]],
}
HOUR_MS = 3_600_000

Model = TypeVar("Model", bound=BaseModel)


class MalformedJson(OfframpError):
    """The body of a request is not JSON."""


class ExitOptions(BaseModel):
    """Where texts may exit."""

    model_config = ConfigDict(strict=True)

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


class PredictRequest(ExitOptions):
    """Texts to classify, with options."""

    model_config = ConfigDict(extra="forbid")

    # of any type here: the batcher checks texts, and its message names the bad one
    texts: Annotated[Any, WithJsonSchema(TEXTS)]
    truncate: bool = Field(True, description="Truncate texts that are too long, rather than refuse them.")
    probabilities: bool = Field(False, description="Return the probability of every label.")
    trace: bool = Field(False, description="Return the prediction of every exit; this runs all layers.")


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
        place = first["loc"][0] if first["loc"] else "the body"
        raise BadOption(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None


def request_schema(policies: Iterable[str], layers: Sequence[int]) -> dict[str, Any]:
    """The JSON schema of a request to a server with these policies and exit layers."""
    schema = PredictRequest.model_json_schema()
    schema["not"] = {
        "description": "A trace runs all layers, so it cannot have a deadline.",
        "properties": {"trace": {"const": True}, "deadline_ms": {"type": "number"}},
        "required": ["trace", "deadline_ms"],
    }
    for name, choices in {"policy": policies, "max_layer": layers}.items():
        del schema["properties"][name]["anyOf"]
        schema["properties"][name]["enum"] = [*choices, None]
    return schema


class ExitPrediction(BaseModel):
    """The prediction of one exit: fields of `offramp.Prediction`."""

    model_config = ConfigDict(from_attributes=True)

    label: str | list[str] | None = Field(
        description="A list in a multi-label problem; null in a regression, and where the model gave NaN."
    )
    score: float | None = Field(description="The label's probability; in a regression the value.")
    layer: int = Field(description="The layer of the exit; 0 is before the first layer.")
    finite: bool = Field(description="False if the model gave NaN or infinity.")
    probabilities: dict[str, float | None] = Field({}, description="Only with `probabilities`.")


class TextPrediction(ExitPrediction):
    """The prediction for one text, by the exit that it took."""

    exits: list[ExitPrediction] = Field([], description="The prediction of every exit; only with `trace`.")


class PredictResponse(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    predictions: list[TextPrediction] = Field(description="One per text, in the order of the request.")
    layers: int = Field(description="The number of layers of the model.")
    policy: str = Field(description="The policy that chose the exits.")
    rung: int | None = Field(
        description="Of the server's ladder: 0 is normal, higher is under load, -1 is full depth because every "
        "rung proved wrong. Null if the request named its policy."
    )


class ErrorResponse(BaseModel):
    error: str = Field(description="What is wrong, in one sentence.")
    id: str = Field(description="The id of the request, as in the server's log.")


class Ready(BaseModel):
    ready: bool


class Health(BaseModel):
    status: str
