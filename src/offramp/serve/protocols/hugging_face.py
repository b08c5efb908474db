"""Hugging Face: text-embeddings-inference (TEI) and the Inference API, which `huggingface_hub.InferenceClient` calls.

Both have /predict with `inputs`. With a field `parameters` it is the Inference API's: a list of strings is then a
batch, even a single text gets one, and there are `top_k` and `function_to_apply`. Token classification is the
Inference API's too.
"""

from collections.abc import Callable
from typing import Any, Literal

from fastapi import HTTPException, Response
from pydantic import Field

import offramp
from offramp.errors import BadData, BadOption, Incompatible, NotFinite, RunFailed, TooLarge
from offramp.inference import Prediction
from offramp.inference.tagger import Spans
from offramp.inference.texts import describe
from offramp.serve.batcher import Limits, Reply
from offramp.serve.error_responses import Failure, MalformedJson
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
from offramp.serve.protocols.rerank import RankedText, rerank
from offramp.tags import OUTSIDE

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
    """What TEI's /predict and /rerank share."""

    raw_scores: bool = False
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None


class PredictParameters(Json):
    """The parameters of the Inference API."""

    function_to_apply: Activation | None = None
    top_k: int | None = Field(default=None, ge=1)


class TeiPredict(Options):
    inputs: Any
    parameters: PredictParameters | None = None


class TeiRerank(Options):
    query: Any
    texts: list[Any]
    return_text: bool = False


class TagParameters(Json):
    """Those that the Inference API documents. Only what gives the same spans is accepted."""

    aggregation_strategy: str | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None


class TokenClassification(Json):
    inputs: Any
    parameters: TagParameters | None = None


def predict(model: ServedModel, body: Body) -> Call:
    request = validate(TeiPredict, body.json)
    parameters = request.parameters or PredictParameters()
    if request.parameters is None:
        texts, single = read_inputs(request.inputs)
    else:
        texts, single = request.inputs if isinstance(request.inputs, list) else [request.inputs], False
    activation = "none" if request.raw_scores else parameters.function_to_apply

    def labels(prediction: Prediction) -> list[dict[str, Any]]:
        scores = zip(model.scores(prediction, activation), model.labels, strict=True)
        best = sorted(scores, key=lambda pair: pair[0], reverse=True)[: parameters.top_k]
        return [{"score": score, "label": label} for score, label in best]

    batcher_request = model.request(texts, body, truncate=truncates(model, request), mixed=True)
    return Call(batcher_request, responder(labels, single))


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


def responder(translate: Callable[[Any], Any], single: bool) -> Callable[[Reply], Response]:
    """Responds with the translation of each prediction; with that alone if the request was a single text."""

    def respond(reply: Reply) -> Response:
        items = [translate(prediction) for prediction in reply.predictions]
        return json_response(items[0] if single else items, reply)

    return respond


def rerank_texts(model: ServedModel, body: Body) -> Call:
    request = validate(TeiRerank, body.json)
    if not request.texts:
        raise HTTPException(400, "`texts` cannot be empty")

    def result(text: RankedText) -> dict[str, Any]:
        document = {"text": text.document} if request.return_text else {}
        return {"index": text.index, **document, "score": text.score}

    def respond(ranked: list[RankedText], reply: Reply) -> Response:
        return json_response([result(text) for text in ranked], reply)

    options = {"raw": request.raw_scores, "truncate": truncates(model, request)}
    return rerank(model, body, request.query, request.texts, respond, **options)


def truncates(model: ServedModel, options: Options) -> bool:
    """True by default, as TEI's `auto_truncate`."""
    side = model.runner.tokenizer.side
    if options.truncation_direction and options.truncation_direction.lower() != side:
        raise BadOption(f"truncation_direction: this model truncates on the {side} only.")
    return options.truncate is not False


def tag(model: ServedModel, body: Body) -> Call:
    request = validate(TokenClassification, body.json)
    parameters = request.parameters or TagParameters()
    ignored = [OUTSIDE] if parameters.ignore_labels is None else parameters.ignore_labels
    if parameters.aggregation_strategy not in (None, "first"):
        raise BadOption(
            f"aggregation_strategy: only `first` is supported, not {parameters.aggregation_strategy!r}: "
            "the tag of a word is that of its first token."
        )
    if parameters.stride is not None:
        raise BadOption("stride: long texts are always read in windows that overlap by a quarter; omit it.")
    if OUTSIDE not in ignored:
        raise BadOption(f"ignore_labels: spans of {OUTSIDE} are never returned; add it to the list.")

    def groups(spans: Spans) -> list[dict[str, Any]]:
        return [
            {
                "entity_group": span.label,
                "score": span.score,
                "word": span.text,
                "start": span.start,
                "end": span.end,
            }
            for span in spans
            if span.label not in ignored
        ]

    single = not isinstance(request.inputs, list)
    texts = [request.inputs] if single else request.inputs
    return Call(model.request(texts, body), responder(groups, single))


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


PREDICT = Operation("text-embeddings-inference", TeiPredict, predict, errors)
RERANK = Operation("text-embeddings-inference", TeiRerank, rerank_texts, errors)
TAG = Operation("Hugging Face Inference API", TokenClassification, tag, errors)
