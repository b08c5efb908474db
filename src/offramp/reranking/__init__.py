"""Reranking with a cross-encoder: documents in, the best ones out, most of them after a few layers."""

from offramp.inference.reranker import Ranked, Reranker

__all__ = ["Ranked", "Reranker"]
