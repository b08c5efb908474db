"""Servers of tiny models for each kind of problem."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from offramp import Tagger
from offramp.inference import Classifier, Runner
from offramp.models.exit_model import ExitModel

MODELS: dict[str, dict[str, Any]] = {
    "reranker": {"num_labels": 1},
    "two_classes": {"labels": ["irrelevant", "relevant"]},
    "multi_label": {"labels": ["red", "green", "blue"], "problem_type": "multi_label_classification"},
}


@pytest.fixture(scope="session")
def make_classifier(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> Callable[[str], Classifier]:
    """make_classifier("reranker") -> a classifier for one of `MODELS`."""
    return lambda name: Classifier(Runner(make_model(**MODELS[name]), tokenizer))


@pytest.fixture
def served(
    serve: Callable[..., Any], server: Any, make_classifier: Callable[[str], Classifier], tagger: Tagger
) -> Callable[[str], Any]:
    """served("reranker") -> a server of that model; served("colours") -> the one that all tests share."""

    def start(name: str) -> Any:
        return server if name == "colours" else serve(tagger if name == "tagger" else make_classifier(name))

    return start
