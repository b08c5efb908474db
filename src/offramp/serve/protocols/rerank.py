"""Reranking with a cross-encoder, whatever protocol asks for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from offramp.inference.reranker import make_pairs
from offramp.policy.decide import check_reranker
from offramp.serve.audit import scores_of
from offramp.serve.batcher import Reply
from offramp.serve.protocols.base import Body, Call, ServedModel, check_finite


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
        check_finite(reply)
        logits: list[float] = scores_of(reply.predictions).tolist()
        # by logits: sigmoids of large ones are all 1
        order = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
        scores = logits if raw else [*map(sigmoid, logits)]
        return respond([RankedText(index, pairs[index][1], scores[index]) for index in order], reply)

    options = {"truncate": truncate, "is_list": True, "top_k": top_k}
    return Call(model.request(pairs, body, body.exit_options(), **options), rank)


def sigmoid(logit: float) -> float:
    return 0.5 * (1 + math.tanh(0.5 * logit))
