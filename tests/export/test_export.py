"""Exported graphs against the model they come from, and folders that are whole or not there."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from offramp.backbones import BACKBONES
from offramp.export import export, exporting
from offramp.model import ExitModel
from offramp.stages import Tokens
from offramp.stages.onnx import OnnxStages

tracing = exporting.graphs


@pytest.fixture(scope="module")
def models(tiny_encoder: Callable[..., Any]) -> Callable[[str], ExitModel]:
    """A model of three stages for each backbone."""

    @cache
    def of(backbone: str) -> ExitModel:
        torch.manual_seed(0)
        model = ExitModel.from_encoder(
            tiny_encoder(backbone, layers=3), num_labels=3, head={"gate": backbone == "bert"}
        )
        for head in model.heads.classifiers:
            torch.nn.init.normal_(head.weight, std=0.5)
        return model

    return of


@pytest.fixture(scope="module")
def traced(models: Callable[[str], ExitModel]) -> Callable[[str], list[onnx.ModelProto]]:
    """The graphs of such a model, traced once for all tests."""
    return cache(lambda backbone: [*tracing(exporting.prepared(models(backbone)))])


@pytest.fixture
def exported(
    models: Callable[[str], ExitModel],
    traced: Callable[[str], list[onnx.ModelProto]],
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Path]:
    """exported("bert", "int8") -> the folder of an exported model, quickly."""

    def of(backbone: str, precision: str = "fp32") -> Path:
        def known(model: ExitModel) -> Iterator[onnx.ModelProto]:
            for graph in traced(backbone):
                copied = onnx.ModelProto()
                copied.CopyFrom(graph)
                yield copied

        monkeypatch.setattr(exporting, "graphs", known)
        return export(models(backbone), tmp_path / f"{backbone}-{precision}", precision, tokenizer)

    return of


def tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(sum(lengths))
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def said(stages: Any, texts: list[Tokens]) -> np.ndarray:
    """(texts, exits, labels), all texts as one batch."""
    batch, answers = stages.embed(texts), []
    for exit in range(len(stages.layers)):
        batch, logits, _ = stages.run(exit, batch)
        answers.append(logits)
    return np.stack(answers, axis=1)


def truth(model: ExitModel, texts: list[Tokens]) -> np.ndarray:
    """(texts, exits, labels) from the model's own forward, one text at a time."""
    with torch.inference_mode():
        outputs = [model(input_ids=torch.tensor([text.ids])).exit_logits for text in texts]
    return np.concatenate([output.numpy() for output in outputs])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_graphs_say_what_the_model_says_for_any_batch_and_length(
    models: Callable[[str], ExitModel], exported: Callable[..., Path], backbone: str
) -> None:
    stages = OnnxStages(exported(backbone), threads=1)
    for lengths in ([1], [2, 1], [7, 3, 11, 1, 5, 7], [stages.max_length]):
        texts = tokens(lengths)
        np.testing.assert_allclose(said(stages, texts), truth(models(backbone), texts), atol=1e-4)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_int8_says_roughly_the_same(
    models: Callable[[str], ExitModel], exported: Callable[..., Path], backbone: str
) -> None:
    texts = tokens([9, 4, 12, 1, 6, 6, 8, 3])
    found, expected = (
        said(OnnxStages(exported(backbone, "int8"), threads=1), texts),
        truth(models(backbone), texts),
    )
    assert not np.array_equal(found, expected)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.98
