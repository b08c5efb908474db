"""Classifiers around tiny random encoders."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from offramp.inference import Classifier, Runner
from offramp.models.exit_model import ExitModel


@pytest.fixture(scope="session")
def classifier(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast) -> Classifier:
    """Four layers, three labels; texts leave at several layers."""
    model = make_model(labels=["red", "green", "blue"])
    return Classifier(Runner(model, tokenizer, "confidence:0.775", window=4, batch_tokens=32))
