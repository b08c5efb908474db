"""Heads that tag every token, from a fine-tuned tagger to the runtime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offramp.errors import BadConfig, BadOption
from offramp.models.backbones import BACKBONES
from offramp.models.exit_model import ExitModel
from offramp.models.heads import HeadConfig
from offramp.problems import TOKENS
from offramp.runtimes import Tokens
from offramp.runtimes.torch import TorchRuntime

Make = Callable[..., Any]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


@pytest.fixture(scope="module")
def tagger(tiny_tagger: Make) -> Any:
    return tiny_tagger("bert", layers=3, id2label=LABELS)


@pytest.mark.parametrize("family", sorted(BACKBONES))
def test_full_depth_equals_a_tagger_of_transformers(family: str, tiny_tagger: Make, padded: Any) -> None:
    tagger = tiny_tagger(family, num_labels=5)
    model = ExitModel.from_encoder(tagger)
    with torch.inference_mode():
        assert torch.equal(model(**padded).logits, tagger(**padded).logits)


def test_an_exit_model_of_a_tagger_keeps_its_problem_and_its_tags(tagger: Any, tmp_path: Path) -> None:
    model = ExitModel.from_encoder(tagger)
    model.save_pretrained(tmp_path)
    again = ExitModel.from_pretrained(tmp_path)
    assert again.config.problem is TOKENS
    assert again.config.label_names == [*LABELS.values()]
    assert again.config.fine_tuned
    assert again.fingerprint() == model.fingerprint()


def test_inner_exits_start_close_to_the_final_classifier(tagger: Any, padded: Any) -> None:
    model = ExitModel.from_encoder(tagger)
    with torch.inference_mode():
        states = tagger(**padded, output_hidden_states=True).hidden_states
        expected = torch.stack([tagger.classifier(state) for state in states], dim=2)
        found = model(**padded).exit_logits
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.95
    assert (found - expected).abs().max() < 0.2 * expected.abs().max()


def test_the_runtime_returns_every_token_without_padding(tagger: Any, padded: Any) -> None:
    model = ExitModel.from_encoder(tagger)
    mask = padded["attention_mask"].bool()
    with torch.inference_mode():
        expected = model(**padded).exit_logits[mask].numpy()
    runtime = TorchRuntime(model)
    rows = [Tokens(ids[real].tolist()) for ids, real in zip(padded["input_ids"], mask, strict=True)]
    for batch in (rows, rows[:1]):  # with padding and without
        state = runtime.embed(batch)
        for exit in range(4):
            state, logits, _ = runtime.run(exit, state)
            np.testing.assert_allclose(logits, expected[: len(logits), exit], atol=1e-5)


def test_the_loss_reads_labelled_tokens_only(tagger: Any, padded: Any) -> None:
    model = ExitModel.from_encoder(tagger)
    labels = torch.full_like(padded["input_ids"], -100)
    labels[0, 1], labels[2, 5] = 3, 0
    with torch.inference_mode():
        output, plain = model(**padded, labels=labels), tagger(**padded, labels=labels)
    last = torch.nn.functional.cross_entropy(output.logits[labels >= 0], labels[labels >= 0])
    torch.testing.assert_close(last, plain.loss)
    assert output.loss.isfinite()


def test_a_cut_model_is_the_exit_at_its_last_layer(tagger: Any, padded: Any) -> None:
    model = ExitModel.from_encoder(tagger)
    for correction in model.heads.corrections:
        torch.nn.init.normal_(correction.out.weight)
    shorter = model.truncate(2)
    with torch.inference_mode():
        torch.testing.assert_close(shorter(**padded).exit_logits, model(**padded).exit_logits[:, :, :3])


def test_an_encoder_gets_heads_that_tag_if_the_problem_says_so(tiny_encoder: Make, padded: Any) -> None:
    model = ExitModel.from_encoder(
        tiny_encoder("bert"), labels=[*LABELS.values()], problem_type="token_classification"
    )
    assert model(**padded).logits.shape == (5, 11, 5)
    assert not model.config.fine_tuned


def test_a_tagger_as_an_encoder_of_a_classifier_loses_its_head(tagger: Any, padded: Any) -> None:
    model = ExitModel.from_encoder(tagger, num_labels=5, problem_type="single_label_classification")
    assert model(**padded).logits.shape == (5, 5)
    assert not model.config.fine_tuned


def test_pooling_that_contradicts_the_problem_is_refused(tagger: Any, tiny_encoder: Make) -> None:
    with pytest.raises(BadOption, match="determines pooling of the heads"):
        ExitModel.from_encoder(tagger, head=HeadConfig(pooling="mean"))
    with pytest.raises(BadConfig, match="heads that tag tokens have pooling='tokens', and no others"):
        ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2, head=HeadConfig(pooling="tokens"))
