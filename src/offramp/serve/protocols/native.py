"""The server's own protocol: /predict, and /tag for models that tag tokens. Both are described in full at /docs."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import to_json

from offramp.serve.batcher import Reply
from offramp.serve.error_responses import default_shape
from offramp.serve.protocols.base import Body, Call, ExitOptions, Operation, ServedModel, in_utf16, validate

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


class TextSpan(BaseModel):
    """A part of a text: fields of `offramp.Span`."""

    start: int = Field(description="The offset of its first character.")
    end: int = Field(description="The offset after its last character.")
    label: str
    score: float = Field(description="The mean probability of its words' tags.")
    text: str


class TextSpans(BaseModel):
    """The spans of one text, by the exit that it took."""

    spans: list[TextSpan]
    layer: int = Field(description="The layer of the exit; of a text read in several windows, the deepest.")
    finite: bool = Field(description="False if the model gave NaN or infinity.")


class TagResponse(PredictResponse):
    predictions: list[TextSpans] = Field(description="One per text, in the order of the request.")  # type: ignore[assignment]


def predict(model: ServedModel, body: Body) -> Call:
    request = validate(PredictRequest, body.json)
    hidden: dict[str, Any] = {} if request.probabilities else {"probabilities": True}
    hidden_of_text = {**hidden, "exits": {"__all__": hidden} if request.trace else True}

    def respond(reply: Reply) -> Response:
        response = PredictResponse.model_validate(reply)
        content = response.model_dump_json(exclude={"predictions": {"__all__": hidden_of_text}})
        return Response(content, media_type="application/json")

    options = {"trace": request.trace, "truncate": request.truncate}
    return Call(model.request(as_list(request.texts), body, request, **options), respond, has_nulls=True)


def tag(model: ServedModel, body: Body) -> Call:
    request = validate(TagRequest, body.json)
    texts = as_list(request.texts)

    def respond(reply: Reply) -> Response:
        reply = in_utf16(reply, texts) if request.utf16 else reply
        content = {
            "predictions": [
                {"spans": spans, "layer": spans.layer, "finite": spans.finite} for spans in reply.predictions
            ],
            "layers": reply.layers,
            "policy": reply.policy,
            "rung": reply.rung,
        }
        return Response(to_json(content), media_type="application/json")

    return Call(model.request(texts, body, request), respond, has_nulls=True)


def as_list(texts: Any) -> list[Any]:
    return texts if isinstance(texts, list) else [texts]


def request_schema(
    kind: type[BaseModel], policies: Iterable[str], layers: Sequence[int], pairs: bool | None
) -> dict[str, Any]:
    """The JSON schema of a native request to a server with these policies and exit layers; `pairs` is whether
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


PREDICT = Operation("offramp", PredictRequest, predict, default_shape)
TAG = Operation("offramp", TagRequest, tag, default_shape)
