"""A tiny tokenizer of whole words, and classifiers around tiny random encoders."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from offramp.classifier import Classifier
from offramp.model import ExitModel

WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film"]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    rust = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rust.pre_tokenizer = Whitespace()
    rust.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


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
