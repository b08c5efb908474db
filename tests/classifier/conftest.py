"""Classifiers around tiny random encoders."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from offramp.classifier import Classifier
from offramp.model import ExitModel


@pytest.fixture(scope="session")
def make_model(tiny_encoder: Callable[..., Any]) -> Callable[..., ExitModel]:
    """make_model(num_labels=3, ...) -> a random model whose exits disagree."""

    def make(backbone: str = "bert", **options: Any) -> ExitModel:
        model = ExitModel.from_encoder(tiny_encoder(backbone), **options)
        torch.manual_seed(5)
        for head in model.heads.classifiers:
            torch.nn.init.normal_(head.weight, std=0.3)
        return model

    return make


@pytest.fixture(scope="session")
def classifier(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast) -> Classifier:
    """Four layers, three labels; texts leave at several layers."""
    model = make_model(labels=["red", "green", "blue"])
    return Classifier(model, tokenizer, "confidence:0.775", window=4, budget=32)
