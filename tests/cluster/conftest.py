"""Tiny models in folders, and a cluster of two cores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from offramp.cluster.ray_session import joined
from offramp.export import export
from offramp.model import ExitModel


@pytest.fixture(scope="session")
def saved(
    make_model: Callable[..., ExitModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Four layers, two labels; texts leave at several layers under `POLICY`."""
    folder = tmp_path_factory.mktemp("cluster") / "model"
    model = make_model(labels=["bad", "good"])
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
