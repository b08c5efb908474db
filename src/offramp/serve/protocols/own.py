"""offramp's own /predict."""

from fastapi import Response

from offramp.serve.batcher import Reply
from offramp.serve.error_responses import own_shape
from offramp.serve.protocols.base import Body, Call, Operation, ServedModel
from offramp.serve.schema import PredictRequest, PredictResponse, validate


def predict(model: ServedModel, body: Body) -> Call:
    request = validate(PredictRequest, body.json)

    def respond(reply: Reply) -> Response:
        response = PredictResponse.from_reply(reply, request.probabilities)
        return Response(response.model_dump_json(exclude_unset=True), media_type="application/json")

    return Call(
        texts=request.texts if isinstance(request.texts, list) else [request.texts],
        respond=respond,
        exit_options=request,
        trace=request.trace,
        truncate=request.truncate,
    )


PREDICT = Operation(predict, own_shape)
