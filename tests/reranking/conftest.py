"""Tiny random cross-encoders, with a rule that was fitted on random queries."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offramp.inference import Classifier
from offramp.inference.reranker import Reranker
from offramp.onnx_export import export
from offramp.reranking.calibrate import QuerySet, fit
from offramp.trace import Trace

WORDS = ["good", "bad", "film", *"abcdefgh"]


def draw_queries(number: int, documents: int = 12, seed: int = 0) -> list[tuple[str, list[str]]]:
    draw = random.Random(seed)

    def text(longest: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))

    return [(text(4), [text(9) for _ in range(draw.randint(1, documents))]) for _ in range(number)]


@pytest.fixture(scope="session")
def reranker_folder(
    make_model: Callable[..., Any], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A cross-encoder with one output, without a rank rule."""
    folder = tmp_path_factory.mktemp("rerankers") / "torch"
    make_model(num_labels=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["torch", "fp32", "int8"])
def reranker(request: pytest.FixtureRequest, reranker_folder: Path) -> Reranker:
    """With a fitted rule whose threshold drops some documents and keeps others."""
    folder = reranker_folder
    if request.param != "torch":
        pairs = [(query, text) for query, documents in draw_queries(30, seed=8) for text in documents]
        folder = export(reranker_folder, folder.with_name(request.param), request.param, texts=pairs)
    return with_rule(Classifier.from_pretrained(folder, "never"))


@pytest.fixture(scope="session")
def two_classes(make_model: Callable[..., Any], tokenizer: Any) -> Reranker:
    return with_rule(Classifier(make_model(labels=["irrelevant", "relevant"]), tokenizer))


def with_rule(classifier: Classifier, threshold: float = 0.2, top_k: int = 3) -> Reranker:
    queries = draw_queries(30, seed=7)
    pairs = [(query, document) for query, documents in queries for document in documents]
    logits, _ = classifier.engine.trace(classifier.tokenizer(pairs))
    numbers = np.arange(len(pairs))
    trace = Trace(
        logits,
        classifier.runtime.info.exits,
        None,
        numbers,
        numbers,
        problem=classifier.runtime.info.problem,
    )
    fitted = fit(QuerySet(trace, np.array([len(documents) for _, documents in queries])), top_k)
    return Reranker(classifier, replace(fitted, threshold=threshold))
