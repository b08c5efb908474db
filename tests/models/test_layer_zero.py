"""An exit before the first layer: a head on the embeddings, for every backbone and in every part of the library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offramp.inference import Classifier
from offramp.inference.collect import collect
from offramp.measuring import sweep
from offramp.measuring.cost import macs
from offramp.models.backbones import BACKBONES
from offramp.models.exit_model import ExitModel
from offramp.models.heads import pool
from offramp.policy import Policy
from offramp.trace import Trace

Make = Callable[..., ExitModel]
TEXTS = ["good film", "bad", "a b c d e f g", "", "good good bad film"]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_first_exit_reads_the_embeddings_that_transformers_computes(
    backbone: str, tiny_encoder: Callable[..., Any], padded: dict[str, torch.Tensor]
) -> None:
    encoder = tiny_encoder(backbone)
    model = ExitModel.from_encoder(encoder, num_labels=3)
    embeddings = encoder(**padded, output_hidden_states=True).hidden_states[0]
    head = model.heads.head_of(0)
    normed = model.adapter.norm(model.backbone, embeddings)
    expected, _ = head.classify(pool(normed, padded["attention_mask"], head.pooling))
    assert model.config.exits[0] == 0
    torch.testing.assert_close(model(**padded).exit_logits[:, 0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", [None, "first"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_first_exit_depends_on_the_text(
    backbone: str, pooling: str | None, tiny_encoder: Callable[..., Any], padded: dict[str, torch.Tensor]
) -> None:
    model = ExitModel.from_encoder(tiny_encoder(backbone), num_labels=3, head={"pooling": pooling})
    padded["input_ids"][:, 0] = 2  # every text starts with [CLS]
    with torch.no_grad():
        assert (model(**padded).exit_logits[:, 0].std(0) > 1e-6).all()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_first_exit_does_not_train_the_embeddings(
    backbone: str, tiny_encoder: Callable[..., Any], padded: dict[str, torch.Tensor]
) -> None:
    model = ExitModel.from_encoder(tiny_encoder(backbone), num_labels=3)
    model(**padded).exit_logits[:, 0].sum().backward()
    words: Any = model.backbone.get_input_embeddings().weight
    assert words.grad is None or not words.grad.any()
    assert model.heads.head_of(0).classifier.weight.grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["layer:0", "never,max_layer=0", "confidence:0,min_layer=0"])
def test_every_text_can_leave_before_the_first_layer(policy: str, any_runtime: Path) -> None:
    classifier = Classifier.from_pretrained(any_runtime, policy)
    predictions = classifier.predict(TEXTS)
    traced = classifier.predict(TEXTS, every_exit=True)
    assert {prediction.layer for prediction in predictions} == {0}
    assert [each.label for each in predictions] == [each.exits[0].label for each in traced]


def test_layers_do_not_run_for_texts_that_leave_before_them(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = Classifier.from_pretrained(saved, "layer:0")
    adapter = type(classifier.runner.runtime.adapter)
    monkeypatch.setattr(adapter, "layer", lambda *_: pytest.fail("a layer ran"))
    assert len(classifier.predict(TEXTS)) == len(TEXTS)


def test_min_layer_keeps_texts_from_leaving_before_the_first_layer(any_runtime: Path) -> None:
    classifier = Classifier.from_pretrained(any_runtime, "confidence:0,min_layer=1")
    assert {prediction.layer for prediction in classifier.predict(TEXTS)} == {1}


def test_runtimes_agree_on_the_first_exit(saved: Path, exported: Path) -> None:
    rows = {"text": TEXTS}
    from datasets import Dataset

    traces = [
        collect(Classifier.from_pretrained(folder, "never"), Dataset.from_dict(rows), progress=False)
        for folder in (saved, exported)
    ]
    assert traces[0].layers == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(traces[0].logits, traces[1].logits, atol=1e-4)


def test_leaving_before_the_first_layer_costs_embedding_and_head() -> None:
    shape = {"hidden": 8, "intermediate": 16, "heads": 2}
    assert int(macs(shape, 2, 5, layers=0)) == 2 * 5 * 8 + 8 * 8 + 8 * 2


def test_a_curve_may_reach_a_mean_layer_of_zero() -> None:
    logits = np.zeros((20, 2, 2), np.float32)
    logits[:, :, 0] = 3
    trace = Trace(
        logits,
        layers=(0, 1),
        labels=np.zeros(20, int),
        lengths=np.full(20, 5),
        ids=np.arange(20),
        shape={"hidden": 8, "intermediate": 16, "heads": 2, "layers": 1},
    )
    point = sweep(trace, "layer").curves["layer"].points[0]
    assert (point.cost.mean_layer, point.cost.layer_ratio) == (0.0, float("inf"))
    assert point.cost.macs > 0
    assert Policy.parse("layer:0").exits(logits, layers=(0, 1)).tolist() == [0] * 20
