"""Reranking with a cross-encoder: documents in, the best ones out, most of them after a few layers."""

from offramp.reranking.reranker import Ranked, Reranker

__all__ = ["Ranked", "Reranker"]
