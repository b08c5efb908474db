"""The JSON of requests and responses; the OpenAPI description at /docs is generated from this."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from offramp.errors import BadOption, OfframpError

TEXT = {"type": "string"}
PAIR = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
TEXTS = {
    "anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}],
    "description": "One text, or a list of texts.",
    "examples": ["a gripping film", ["a gripping film", "a dull one"]],
}
PAIRS = {
    "anyOf": [{"type": "array", "items": PAIR, "minItems": 1}],
    "description": "A list of pairs of texts.",
    "examples": [[["Is it good?", "It is."]]],
}
EITHER: dict[str, Any] = {
    "anyOf": [*TEXTS["anyOf"], *PAIRS["anyOf"]],
    "description": "One text, a list of texts, or a list of pairs of texts.",
    "examples": [*TEXTS["examples"], *PAIRS["examples"]],
}
HOUR_MS = 3_600_000

Model = TypeVar("Model", bound=BaseModel)


class MalformedJson(OfframpError):
    """The body of a request is not JSON."""


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


class PredictRequest(ExitOptions):
    """Texts to classify, with options."""

    model_config = ConfigDict(extra="forbid")

    # of any type here: the batcher checks texts, and its message names the bad one
    texts: Annotated[Any, WithJsonSchema(EITHER)]
    truncate: bool = Field(True, description="Truncate texts that are too long, rather than refuse them.")
    probabilities: bool = Field(False, description="Return the probability of every label.")
    trace: bool = Field(False, description="Return the prediction of every exit; this runs all layers.")


class TagRequest(ExitOptions):
    """Texts to tag, with options. Texts of any length are read whole."""

    model_config = ConfigDict(extra="forbid")

    texts: Annotated[Any, WithJsonSchema(TEXTS)]
    utf16: bool = Field(
        False,
        description="Count offsets in units of UTF-16, as JavaScript and Java do, instead of characters.",
    )


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


def request_schema(
    kind: type[BaseModel], policies: Iterable[str], layers: Sequence[int], pairs: bool | None
) -> dict[str, Any]:
    """The JSON schema of one of our own requests to a server with these policies and exit layers; `pairs` is whether
    its model was trained on pairs, if that is known."""
    schema = kind.model_json_schema()
    if kind is PredictRequest:
        schema["properties"]["texts"] = {None: EITHER, True: PAIRS, False: TEXTS}[pairs]
        schema["not"] = {
            "description": "A trace runs all layers, so it cannot have a deadline.",
            "properties": {"trace": {"const": True}, "deadline_ms": {"type": "number"}},
            "required": ["trace", "deadline_ms"],
        }
    for name, choices in {"policy": policies, "max_layer": layers}.items():
        del schema["properties"][name]["anyOf"]
        schema["properties"][name]["enum"] = [*choices, None]
    return schema


def json_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The description of an endpoint that takes such JSON."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


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


class ExitPrediction(BaseModel):
    """The prediction of one exit: fields of `offramp.Prediction`."""

    model_config = ConfigDict(from_attributes=True)

    label: str | list[str] | None = Field(
        description="A list in a multi-label problem; null in a regression, and where the model gave NaN."
    )
    score: float | None = Field(description="The label's probability; in a regression the value.")
    decision: bool | str | list[str] | None = Field(
        description="At the model's operating point: yes or no, or the labels that reach their thresholds; the label "
        "if it has none."
    )
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


class FoundSpan(BaseModel):
    """A part of a text: fields of `offramp.Span`."""

    start: int = Field(description="The offset of its first character.")
    end: int = Field(description="The offset after its last character.")
    label: str
    score: float = Field(description="The mean probability of its words' tags.")
    text: str


class TextSpans(BaseModel):
    """The spans of one text, by the exit that it took."""

    spans: list[FoundSpan]
    layer: int = Field(description="The layer of the exit; of a text read in several windows, the deepest.")
    finite: bool = Field(description="False if the model gave NaN or infinity.")


class TagResponse(BaseModel):
    predictions: list[TextSpans] = Field(description="One per text, in the order of the request.")
    layers: int = Field(description="The number of layers of the model.")
    policy: str = Field(description="The policy that chose the exits.")
    rung: int | None = Field(description="As in the response of /predict.")


class ErrorResponse(BaseModel):
    error: str = Field(description="What is wrong, in one sentence.")
    id: str = Field(description="The id of the request, as in the server's log.")


class Ready(BaseModel):
    ready: bool


class Health(BaseModel):
    status: str
