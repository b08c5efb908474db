"""Reranking with a cross-encoder, whatever protocol asks for it; and as Cohere, Jina and vLLM do it: one request and
response that is valid for all three."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Response
from pydantic import Field

from offramp.errors import BadData, BadOption
from offramp.inference.reranker import make_pairs
from offramp.policy.decide import check_reranker
from offramp.rules.rank import relevance
from offramp.serve.batcher import Reply
from offramp.serve.error_responses import Failure
from offramp.serve.protocols import vllm
from offramp.serve.protocols.base import Body, Call, Json, Operation, ServedModel, json_response, validate


@dataclass(frozen=True)
class RankedText:
    index: int
    """The place of the document in the request."""
    document: str
    score: float


def rerank(
    model: ServedModel,
    body: Body,
    query: Any,
    documents: Sequence[Any],
    respond: Callable[[list[RankedText], Reply], Response],
    *,
    top_k: int | None = None,
    raw: bool = False,
    truncate: bool = True,
) -> Call:
    """Scores every document for the query, and responds with all of them, best first.

    A score is the sigmoid of the `relevance`; with `raw`, that itself. The rule `rank` finds the best `top_k`, by
    default as many as it was calibrated for; beyond them the order is a guess.
    """
    check_reranker(len(model.labels), model.problem)
    pairs = make_pairs(query, documents)

    def rank(reply: Reply) -> Response:
        logits = np.array([prediction.logits for prediction in reply.predictions])
        relevances: list[float] = relevance(logits).tolist()
        # not by score: sigmoids of large logits are all 1
        order = sorted(range(len(pairs)), key=relevances.__getitem__, reverse=True)
        scores = relevances if raw else [*map(sigmoid, relevances)]
        return respond([RankedText(index, pairs[index][1], scores[index]) for index in order], reply)

    return Call(model.request(pairs, body, truncate=truncate, is_list=True, top_k=top_k), rank)


def sigmoid(logit: float) -> float:
    return 0.5 * (1 + math.tanh(0.5 * logit))


class RerankRequest(Json):
    model: str | None = None
    query: Any
    documents: list[Any]
    top_n: int | None = Field(default=None, ge=0)
    return_documents: bool = True
    rank_fields: list[str] | None = None
    use_activation: bool | None = None


def rerank_documents(model: ServedModel, body: Body) -> Call:
    request = validate(RerankRequest, body.json)
    model.check_name(request.model)
    if not request.documents:
        raise BadData("documents: the list is empty.")
    if request.rank_fields not in (None, ["text"]):
        raise BadOption("rank_fields: only the field `text` of documents is supported.")
    documents = [
        document.get("text") if isinstance(document, dict) else document for document in request.documents
    ]

    def result(text: RankedText) -> dict[str, Any]:
        document = {"document": {"text": text.document}} if request.return_documents else {}
        return {"index": text.index, **document, "relevance_score": text.score}

    def respond(ranked: list[RankedText], reply: Reply) -> Response:
        return json_response(
            {
                "id": f"rerank-{body.id}",
                "object": "list",
                "model": model.name,
                "results": [result(text) for text in ranked[: request.top_n or None]],
                "usage": vllm.usage(reply),
            },
            reply,
        )

    options: dict[str, Any] = {"top_k": request.top_n, "raw": request.use_activation is False}
    return rerank(model, body, request.query, documents, respond, **options)


def errors(failure: Failure) -> tuple[int, dict[str, Any]]:
    """With the message where each of the three has it: Cohere's `message`, Jina's `detail`, vLLM's `error`."""
    status, content = vllm.errors(failure)
    return status, {"message": failure.message, "detail": failure.message, **content}


RERANK = Operation("Cohere, Jina and vLLM", RerankRequest, rerank_documents, errors)
