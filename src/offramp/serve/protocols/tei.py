"""text-embeddings-inference: /predict, /rerank and the fields of /info.

With a field `parameters`, /predict is that of the Hugging Face Inference API, which huggingface_hub's
`InferenceClient` calls: a list of strings is a batch, even a single text gets one, and there are `top_k` and
`function_to_apply`.
"""

from typing import Any, Literal

from fastapi import HTTPException, Response
from pydantic import Field

import offramp
from offramp.errors import BadData, BadOption, Incompatible, NotFinite, RunFailed, TooLarge
from offramp.inference import Prediction
from offramp.inference.texts import describe
from offramp.serve.batcher import Limits, Reply
from offramp.serve.error_responses import Failure
from offramp.serve.protocols.base import (
    Activation,
    Body,
    Call,
    Operation,
    ServedModel,
    check_finite,
    json_response,
)
from offramp.serve.protocols.rerank import RankedText, rerank
from offramp.serve.schema import Json, MalformedJson, validate

TEI = "text-embeddings-inference"
STATUS: dict[type[Exception] | type[None], int] = {
    TooLarge: 422,
    Incompatible: 424,
    NotFinite: 424,
    RunFailed: 424,
}
ERROR_TYPES = {
    400: "Empty",
    413: "Validation",
    422: "Validation",
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
}


class Options(Json):
    """What /predict and /rerank share."""

    raw_scores: bool = False
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None


class Parameters(Json):
    """The parameters of the Hugging Face Inference API."""

    function_to_apply: Activation | None = None
    top_k: int | None = Field(default=None, ge=1)


class TeiPredict(Options):
    inputs: Any
    parameters: Parameters | None = None


class TeiRerank(Options):
    query: Any
    texts: list[Any]
    return_text: bool = False


def predict(model: ServedModel, body: Body) -> Call:
    request = validate(TeiPredict, body.json)
    parameters = request.parameters or Parameters()
    if request.parameters is None:
        texts, single = read_inputs(request.inputs)
    else:
        texts, single = request.inputs if isinstance(request.inputs, list) else [request.inputs], False
    activation = "none" if request.raw_scores else parameters.function_to_apply

    def labels(prediction: Prediction) -> list[dict[str, Any]]:
        scores = zip(model.scores(prediction, activation), model.labels, strict=True)
        best = sorted(scores, key=lambda pair: pair[0], reverse=True)[: parameters.top_k]
        return [{"score": score, "label": label} for score, label in best]

    def respond(reply: Reply) -> Response:
        check_finite(reply)
        lists = [labels(prediction) for prediction in reply.predictions]
        return json_response(lists[0] if single else lists, reply)

    options = {"truncate": truncates(model, request), "mixed": True}
    return Call(model.request(texts, body, body.exit_options(), **options), respond)


def read_inputs(inputs: Any) -> tuple[list[Any], bool]:
    """The texts, and whether they are a single one rather than a batch: a string, or a flat list of one string or
    of a pair. A batch is a list of such lists."""
    if isinstance(inputs, str):
        return [inputs], True
    if not isinstance(inputs, list) or not inputs:
        raise BadData(f"inputs: {describe(inputs)} is not a text, a pair or a batch.")
    if isinstance(inputs[0], str):
        return [read_text(inputs, "inputs")], True
    return [read_text(parts, f"item {index}") for index, parts in enumerate(inputs)], False


def read_text(parts: Any, place: str) -> Any:
    if isinstance(parts, list) and len(parts) in (1, 2) and all(isinstance(part, str) for part in parts):
        return parts[0] if len(parts) == 1 else tuple(parts)
    raise BadData(f"{place} is {describe(parts)}, not a list of one text or of a pair.")


def rerank_texts(model: ServedModel, body: Body) -> Call:
    request = validate(TeiRerank, body.json)
    if not request.texts:
        raise HTTPException(400, "`texts` cannot be empty")

    def respond(ranked: list[RankedText], reply: Reply) -> Response:
        return json_response(
            [
                {
                    "index": text.index,
                    **({"text": text.document} if request.return_text else {}),
                    "score": text.score,
                }
                for text in ranked
            ],
            reply,
        )

    options = {"raw": request.raw_scores, "truncate": truncates(model, request)}
    return rerank(model, body, request.query, request.texts, respond, **options)


def truncates(model: ServedModel, options: Options) -> bool:
    """True by default, as TEI's `auto_truncate`."""
    side = model.runner.tokenizer.side
    if options.truncation_direction and options.truncation_direction.lower() != side:
        raise BadOption(f"truncation_direction: this model truncates on the {side} only.")
    return options.truncate is not False


def info(model: ServedModel, limits: Limits, readers: int) -> dict[str, Any]:
    """TEI's fields of /info."""
    precision = model.runner.runtime.precision
    labels = {
        "id2label": {str(index): label for index, label in enumerate(model.labels)},
        "label2id": {label: index for index, label in enumerate(model.labels)},
    }
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": precision.replace("bf", "bfloat").replace("fp", "float"),
        "served_model_name": model.name,
        "model_type": {model_type(model): labels},
        "version": offramp.__version__,
        "max_concurrent_requests": limits.items,
        "max_input_length": model.runner.tokenizer.max_length,
        "max_batch_tokens": limits.tokens,
        "max_batch_requests": limits.window,
        "max_client_batch_size": limits.items,
        "auto_truncate": True,
        "tokenization_workers": readers,
    }


def model_type(model: ServedModel) -> str:
    if model.problem.of_tokens:
        return "tagger"  # TEI has none
    return "reranker" if len(model.labels) == 1 else "classifier"


def errors(failure: Failure) -> tuple[int, dict[str, Any]]:
    status = STATUS.get(type(failure.error), failure.status)
    kind = "Validation" if isinstance(failure.error, MalformedJson) else ERROR_TYPES.get(status)
    return status, {"error": failure.message, **({"error_type": kind} if kind else {})}


PREDICT = Operation(TEI, TeiPredict, predict, errors)
RERANK = Operation(TEI, TeiRerank, rerank_texts, errors)
