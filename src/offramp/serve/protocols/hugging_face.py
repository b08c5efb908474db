"""Token classification as in the Hugging Face Inference API, which huggingface_hub's `InferenceClient` calls.

Its text classification shares paths with text-embeddings-inference, see `tei`.
"""

from typing import Any

from fastapi import Response

from offramp.errors import BadOption
from offramp.inference.tagger import Spans
from offramp.serve.batcher import Reply
from offramp.serve.protocols import tei
from offramp.serve.protocols.base import Body, Call, Operation, ServedModel, check_finite, json_response
from offramp.serve.schema import Json, validate
from offramp.tags import OUTSIDE


class Parameters(Json):
    """Those that the API documents. Only what gives the same spans is accepted."""

    aggregation_strategy: str | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None


class TokenClassification(Json):
    inputs: Any
    parameters: Parameters | None = None


def tag(model: ServedModel, body: Body) -> Call:
    request = validate(TokenClassification, body.json)
    parameters = request.parameters or Parameters()
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

    def respond(reply: Reply) -> Response:
        check_finite(reply)
        lists = [groups(spans) for spans in reply.predictions]
        return json_response(lists[0] if single else lists, reply)

    texts = [request.inputs] if single else request.inputs
    return Call(model.request(texts, body, body.exit_options()), respond)


TAG = Operation("Hugging Face Inference API", TokenClassification, tag, tei.errors)
