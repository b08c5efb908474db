"""What requests and answers look like; the OpenAPI description at /docs is made from this."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from offramp.classifier import Prediction
from offramp.errors import BadOption, OfframpError
from offramp.serve.batcher import Reply

A_TEXT = {"type": "string"}
A_PAIR = {"type": "array", "items": A_TEXT, "minItems": 2, "maxItems": 2}
TEXTS = {
    "anyOf": [A_TEXT, *({"type": "array", "items": each, "minItems": 1} for each in (A_TEXT, A_PAIR))],
    "description": "One text, a list of texts, or a list of pairs of texts.",
    "examples": ["a gripping film", ["a gripping film", "a dull one"], [["Is it good?", "It is."]]],
}
AN_HOUR = 3_600_000


class MalformedJson(OfframpError):
    """The body of a request is not JSON."""


class Question(BaseModel):
    """Texts, and how to answer them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # of any type here, as the batcher checks texts and names the one that is none
    texts: Annotated[Any, WithJsonSchema(TEXTS)]
    policy: str | None = Field(None, description="Instead of the server's own; one of those that it allows.")
    max_layer: int | None = Field(None, description="Everybody leaves here at the latest.")
    deadline_ms: float | None = Field(
        None,
        gt=0,
        le=AN_HOUR,
        description="When so much time has passed, answer with the last exit passed; not with a trace.",
    )
    truncate: bool = Field(True, description="Cut texts that are too long, rather than refuse them.")
    probabilities: bool = Field(False, description="Tell the probability of every label.")
    trace: bool = Field(False, description="Tell what every exit says; this runs all layers.")

    @classmethod
    def read(cls, body: bytes) -> Self:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MalformedJson(f"the body is not JSON ({error}).") from None
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = first["loc"][0] if first["loc"] else "the body"
            raise BadOption(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None


def question_schema(policies: Iterable[str], layers: Sequence[int]) -> dict[str, Any]:
    """As JSON schema, with what this server allows."""
    schema = Question.model_json_schema()
    schema["not"] = {
        "description": "A trace runs all layers, so it takes no deadline.",
        "properties": {"trace": {"const": True}, "deadline_ms": {"type": "number"}},
        "required": ["trace", "deadline_ms"],
    }
    for name, choices in {"policy": policies, "max_layer": layers}.items():
        del schema["properties"][name]["anyOf"]
        schema["properties"][name]["enum"] = [*choices, None]
    return schema


class Exit(BaseModel):
    """What one exit says."""

    label: str | list[str] | None = Field(
        description="In a multi-label problem a list; null in a regression, and where the model gave NaN."
    )
    score: float | None = Field(description="The label's probability; in a regression the value.")
    layer: int = Field(description="From 1.")
    finite: bool = Field(description="Whether the model gave no NaN and no infinity.")
    probabilities: dict[str, float | None] = Field({}, description="If they were asked for.")


class Item(Exit):
    """The answer to one text: what the exit says at which it left."""

    exits: list[Exit] = Field([], description="What every exit says, if a trace was asked for.")


class Answer(BaseModel):
    predictions: list[Item] = Field(description="One for each text, in their order.")
    layers: int = Field(description="How many the model has.")
    policy: str = Field(description="What decided who leaves where.")
    rung: int | None = Field(
        description="Of the server's ladder: 0 is normal, higher is under load, -1 is full depth because the "
        "others proved wrong. Null if the request named its policy."
    )

    @classmethod
    def of(cls, reply: Reply, probabilities: bool) -> Self:
        return cls(
            predictions=[item(each, probabilities) for each in reply.predictions],
            layers=reply.predictions[0].layers,
            policy=reply.policy,
            rung=reply.rung,
        )


def item(prediction: Prediction, probabilities: bool) -> Item:
    """Fields that were not asked for are left unset, and so are not sent."""
    fields = said(prediction, probabilities)
    if prediction.exits:
        fields["exits"] = [Exit(**said(each, probabilities)) for each in prediction.exits]
    return Item(**fields)


def said(prediction: Prediction, probabilities: bool) -> dict[str, Any]:
    label = prediction.label
    chances = {"probabilities": prediction.probabilities} if probabilities else {}
    return {
        "label": list(label) if isinstance(label, tuple) else label,
        "score": prediction.score,
        "layer": prediction.layer,
        "finite": prediction.finite,
        **chances,
    }


class Problem(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="In one sentence.")
    id: str = Field(description="Of the request, as in the server's log.")


class Ready(BaseModel):
    ready: bool


class Health(BaseModel):
    status: str
