"""The transformers pipeline task against the classifier."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast, pipeline

from offramp.inference import Classifier, Runner
from offramp.inference.pipeline import TASK, ExitPipeline
from offramp.models.exit_model import ExitModel

TEXTS = ["good film", "bad", "", "a b c d e", "z", "good good bad", "q r s", "a " * 200]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_pipeline_agrees_with_the_classifier(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path, batch_size: int
) -> None:
    model = make_model(labels=["red", "green", "blue"])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pipe = pipeline(TASK, model=str(tmp_path))
    assert isinstance(pipe, ExitPipeline)
    expected = Classifier(Runner(model, tokenizer)).predict(TEXTS, policy="confidence:0.775")
    found = pipe(TEXTS, policy="confidence:0.775", batch_size=batch_size)
    for record, prediction in zip(found, expected, strict=True):
        assert record["label"] == prediction.label
        assert record["layer"] == prediction.layer
        assert record["score"] == pytest.approx(prediction.score, abs=1e-5)
    assert len({record["layer"] for record in found}) > 1
    assert [record["layer"] for record in pipe(TEXTS[:2])] == [4, 4]
    every = pipe("good film", top_k=None)
    assert [record["score"] for record in every] == sorted((r["score"] for r in every), reverse=True)
    assert pipe("good film")[0]["label"] == every[0]["label"]
    pair = Classifier(Runner(model, tokenizer)).predict(("good film", "bad"))
    assert pipe({"text": "good film", "text_pair": "bad"})["score"] == pytest.approx(pair.score, abs=1e-5)


def test_nan_has_no_label_in_a_pipeline(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(num_labels=2)
    model.heads.classifiers[-1].bias.data.fill_(torch.nan)
    (record,) = pipeline(TASK, model=model, tokenizer=tokenizer)("good film")
    assert record["label"] is None
    assert np.isnan(record["score"])
