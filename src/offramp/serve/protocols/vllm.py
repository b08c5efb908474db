"""vLLM's /classify, and its errors, which are those of OpenAI's API."""

import time
from http import HTTPStatus
from typing import Any

import numpy as np
from fastapi import Response

from offramp.errors import BadOption
from offramp.serve.batcher import Reply
from offramp.serve.error_responses import Failure
from offramp.serve.protocols.base import (
    Activation,
    Body,
    Call,
    Json,
    Operation,
    ServedModel,
    json_response,
    validate,
)


class ClassifyRequest(Json):
    model: str | None = None
    input: Any
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None


def classify(model: ServedModel, body: Body) -> Call:
    request = validate(ClassifyRequest, body.json)
    model.check_name(request.model)
    longest = model.runner.tokenizer.max_length
    if request.truncate_prompt_tokens not in (None, -1, longest):
        raise BadOption(f"truncate_prompt_tokens: only -1, which is this model's {longest}, is supported.")
    texts = request.input if isinstance(request.input, list) else [request.input]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadOption(f"input: item {index} is not a text; tokens and pairs are not supported.")

    activation: Activation | None = "none" if request.use_activation is False else None

    def respond(reply: Reply) -> Response:
        scores = [model.scores(prediction, activation) for prediction in reply.predictions]
        return json_response(
            {
                "id": f"classify-{body.id}",
                "object": "list",
                "created": int(time.time()),
                "model": model.name,
                "data": [
                    {
                        "index": index,
                        "label": model.labels[int(np.argmax(probabilities))],
                        "probs": probabilities,
                        "num_classes": len(probabilities),
                    }
                    for index, probabilities in enumerate(scores)
                ],
                "usage": usage(reply),
            },
            reply,
        )

    # as there, a text that is too long is refused unless truncation is asked for
    truncate = request.truncate_prompt_tokens is not None
    return Call(model.request(texts, body, truncate=truncate), respond)


def usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.tokens,
        "total_tokens": reply.tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def errors(failure: Failure) -> tuple[int, dict[str, Any]]:
    status = 400 if failure.status == 422 else failure.status
    kind = HTTPStatus(status).phrase.replace(" ", "").removesuffix("Error") + "Error"
    return status, {"error": {"message": failure.message, "type": kind, "param": None, "code": status}}


CLASSIFY = Operation("vLLM", ClassifyRequest, classify, errors)
