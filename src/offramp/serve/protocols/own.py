"""offramp's own /predict."""

from typing import Any

from fastapi import Response

from offramp.serve.batcher import Reply
from offramp.serve.error_responses import own_shape
from offramp.serve.protocols.base import Body, Call, Operation, ServedModel
from offramp.serve.schema import PredictRequest, PredictResponse, validate


def predict(model: ServedModel, body: Body) -> Call:
    request = validate(PredictRequest, body.json)
    texts = request.texts if isinstance(request.texts, list) else [request.texts]
    hidden: dict[str, Any] = {} if request.probabilities else {"probabilities": True}
    hidden_of_text = {**hidden, "exits": {"__all__": hidden} if request.trace else True}

    def respond(reply: Reply) -> Response:
        response = PredictResponse.model_validate(reply)
        content = response.model_dump_json(exclude={"predictions": {"__all__": hidden_of_text}})
        return Response(content, media_type="application/json")

    return Call(model.request(texts, body, request, trace=request.trace, truncate=request.truncate), respond)


PREDICT = Operation("offramp", PredictRequest, predict, own_shape)
