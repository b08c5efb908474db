"""Tiny models in folders, and a cluster of two cores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from offramp.cluster.joining import joined
from offramp.export import export
from offramp.model import ExitModel


@pytest.fixture(scope="session")
def saved(
    tiny_encoder: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Four layers, two labels; texts leave at several layers under `POLICY`."""
    folder = tmp_path_factory.mktemp("cluster") / "model"
    model = ExitModel.from_encoder(tiny_encoder("bert"), labels=["bad", "good"])
    torch.manual_seed(5)
    for head in model.heads.classifiers:
        torch.nn.init.normal_(head.weight, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def exported(saved: Path) -> Path:
    return export(saved, saved.parent / "exported")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with joined(None, cores=2):
        yield
