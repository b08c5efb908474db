"""Reranking with a cross-encoder, whatever protocol asks for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Response

from offramp.inference.reranker import make_pairs
from offramp.policy.ranking import check_reranker, relevance
from offramp.serve.batcher import Reply
from offramp.serve.protocols.base import Body, Call, ServedModel, check_finite


@dataclass(frozen=True)
class RankedText:
    index: int
    """Of the document in the request."""
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

    A score is the sigmoid of the `relevance`; with `raw`, that itself. A rank rule finds the best `top_k`, by default
    as many as it was calibrated for; beyond them the order is a guess.
    """
    check_reranker(model.labels, model.problem_type)
    pairs = make_pairs(query, documents)

    def rank(reply: Reply) -> Response:
        check_finite(reply)
        logits = scores_of(reply, model.classifier.runtime.info.exits)
        # by logits: sigmoids of large ones are all 1
        order = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
        scores = logits if raw else [*map(sigmoid, logits)]
        return respond([RankedText(index, pairs[index][1], scores[index]) for index in order], reply)

    rule = model.batcher.rank_rule
    if rule and not top_k:
        top_k = rule.top_k
    return Call(model.request(pairs, body, body.exit_options(), truncate=truncate, top_k=top_k), rank)


def scores_of(reply: Reply, layers: Sequence[int]) -> list[float]:
    """Of each document, on the scale of full depth if a rank rule decided."""
    scores = relevance(np.array([prediction.logits for prediction in reply.predictions]))
    if reply.rank_rule is not None:
        exits = [layers.index(prediction.layer) for prediction in reply.predictions]
        scores = reply.rank_rule.estimate(exits, scores)
    found: list[float] = scores.tolist()
    return found


def sigmoid(logit: float) -> float:
    return 0.5 * (1 + math.tanh(0.5 * logit))
