"""offramp's own /predict, and /tag for models that tag tokens."""

from typing import Any

from fastapi import Response
from pydantic_core import to_json

from offramp.serve.batcher import Reply
from offramp.serve.error_responses import own_shape
from offramp.serve.protocols.base import Body, Call, Operation, ServedModel, in_utf16
from offramp.serve.schema import PredictRequest, PredictResponse, TagRequest, validate


def predict(model: ServedModel, body: Body) -> Call:
    request = validate(PredictRequest, body.json)
    hidden: dict[str, Any] = {} if request.probabilities else {"probabilities": True}
    hidden_of_text = {**hidden, "exits": {"__all__": hidden} if request.trace else True}

    def respond(reply: Reply) -> Response:
        response = PredictResponse.model_validate(reply)
        content = response.model_dump_json(exclude={"predictions": {"__all__": hidden_of_text}})
        return Response(content, media_type="application/json")

    options = {"trace": request.trace, "truncate": request.truncate}
    return Call(model.request(as_list(request.texts), body, request, **options), respond)


def tag(model: ServedModel, body: Body) -> Call:
    request = validate(TagRequest, body.json)
    texts = as_list(request.texts)

    def respond(reply: Reply) -> Response:
        reply = in_utf16(reply, texts) if request.utf16 else reply
        predictions = [
            {"spans": spans, "layer": spans.layer, "finite": spans.finite} for spans in reply.predictions
        ]
        run = {"layers": reply.layers, "policy": reply.policy, "rung": reply.rung}
        return Response(to_json({"predictions": predictions, **run}), media_type="application/json")

    return Call(model.request(texts, body, request), respond)


def as_list(texts: Any) -> list[Any]:
    return texts if isinstance(texts, list) else [texts]


PREDICT = Operation("offramp", PredictRequest, predict, own_shape)
TAG = Operation("offramp", TagRequest, tag, own_shape)
