"""Exported taggers: the spans and exits of the model they come from, whatever else is in the batch."""

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TokenClassificationPipeline

from offramp import ExitModel, Runner, Tagger
from offramp.engine import Engine
from offramp.models.backbones import BACKBONES
from offramp.numerics import entropy
from offramp.onnx_export import export
from offramp.policy import Policy
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import OnnxRuntime

TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
DRAW = np.random.default_rng(0)
TEXTS = [" ".join(DRAW.choice([*"abcdefghij", "good", "film"], length)) for length in range(30)]
PRECISIONS = ("fp32", "int8")


@pytest.fixture(scope="module")
def plain(tiny_tagger: Callable[..., Any]) -> Callable[[str], Any]:
    """A fine-tuned tagger of each family."""
    labels = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: row for row, tag in enumerate(TAGS)}}
    return cache(lambda family: tiny_tagger(family, layers=3, **labels))


@pytest.fixture(scope="module")
def models(plain: Callable[[str], Any]) -> Callable[[str], ExitModel]:
    """The same with exits that disagree."""

    @cache
    def of(family: str) -> ExitModel:
        model = ExitModel.from_encoder(plain(family), head={"gate": family == "bert"})
        torch.manual_seed(7)
        for head in model.heads.classifiers[:-1]:
            torch.nn.init.normal_(head.weight, std=0.5)
        return model.eval()

    return of


@pytest.fixture(scope="module")
def exported(
    models: Callable[[str], ExitModel], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """exported("bert", "int8") -> the folder of an exported tagger."""

    @cache
    def of(family: str, precision: str) -> Path:
        folder = tmp_path_factory.mktemp("taggers") / f"{family}-{precision}"
        return export(models(family), folder, precision, tokenizer, texts=TEXTS)

    return of


def random_tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(sum(lengths))
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def all_logits(runtime: Any, texts: list[Tokens]) -> np.ndarray:
    """(tokens, exits, tags), all texts as one batch."""
    batch, every_exit = runtime.embed(texts), []
    for exit in range(len(runtime.info.exits)):
        batch, logits, _ = runtime.run(exit, batch)
        every_exit.append(logits)
    return np.stack(every_exit, axis=1)


def truth(model: ExitModel, texts: list[Tokens]) -> np.ndarray:
    """(tokens, exits, tags) from the model's own forward, one text at a time."""
    with torch.inference_mode():
        outputs = [model(input_ids=torch.tensor([text.ids])).exit_logits[0] for text in texts]
    return np.concatenate([output.numpy() for output in outputs])


@pytest.mark.parametrize("family", BACKBONES)
def test_graphs_tag_every_token_as_the_model_does(
    models: Callable[[str], ExitModel],
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    convert: Any,
    family: str,
) -> None:
    """The graphs are converted here, and not copies of those of another test."""
    monkeypatch.setattr("offramp.onnx_export.graphs.to_onnx", convert)
    runtime = OnnxRuntime(export(models(family), tmp_path / "out", tokenizer=tokenizer), threads=1)
    for lengths in ([1], [2, 1], [7, 3, 11, 1, 5, 7], [runtime.max_length]):
        texts = random_tokens(lengths)
        np.testing.assert_allclose(all_logits(runtime, texts), truth(models(family), texts), atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", BACKBONES)
def test_neighbours_and_padding_change_no_bit_of_any_token_and_no_exit(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], family: str, precision: str
) -> None:
    runtime = OnnxRuntime(exported(family, precision), threads=1)
    draw = np.random.default_rng(0)
    texts = random_tokens(draw.integers(2, 30, 24).tolist())
    each = [all_logits(runtime, [text]) for text in texts]
    if precision == "int8":
        found, expected = np.concatenate(each), truth(models(family), texts)
        assert not np.array_equal(found, expected)
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.93  # random weights, other texts
    unsure = np.array([entropy(logits).max(0) for logits in each])  # (texts, exits)
    policy = Policy.parse(f"entropy:{np.median(unsure[:, :-1])}")
    decided = [Engine(runtime).run([text], policy) for text in texts]
    assert len({int(each.exits[0]) for each in decided}) > 1
    for window, batch_tokens, overhead in itertools.product([5, 24], [60, 1000], [0, 1000]):
        order = draw.permutation(len(texts))
        runtime.overhead = overhead
        engine = Engine(runtime, window, batch_tokens)
        chosen = [texts[row] for row in order]
        np.testing.assert_array_equal(engine.trace(chosen)[0], np.concatenate([each[row] for row in order]))
        decision = engine.run(chosen, policy)
        np.testing.assert_array_equal(decision.exits, [decided[row].exits[0] for row in order])
        np.testing.assert_array_equal(decision.logits, np.concatenate([decided[row].logits for row in order]))


POLICIES = ["entropy:0.9", "confidence:0.5", "patience:1", "gate:0.45", "layer:2", "never"]


@pytest.mark.parametrize("policy", POLICIES)
def test_spans_and_layers_of_an_exported_tagger_are_those_of_the_model(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], tokenizer: Any, policy: str
) -> None:
    expected = Tagger(Runner(models("bert"), tokenizer)).tag([*TEXTS, "good film x " * 60], policy=policy)
    found = Tagger.from_pretrained(exported("bert", "fp32")).tag([*TEXTS, "good film x " * 60], policy=policy)
    for one, other in zip(expected, found, strict=True):
        assert one.layer == other.layer
        assert [(each.start, each.end, each.label) for each in one] == [
            (each.start, each.end, each.label) for each in other
        ]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)


def test_an_exported_tagger_that_never_exits_early_is_the_plain_model(
    plain: Callable[[str], Any], exported: Callable[[str, str], Path], tokenizer: Any
) -> None:
    pipeline = TokenClassificationPipeline(
        model=plain("bert"), tokenizer=tokenizer, aggregation_strategy="first"
    )
    found = Tagger.from_pretrained(exported("bert", "fp32")).tag(TEXTS, policy="never")
    assert [[(each.start, each.end, each.label) for each in spans] for spans in found] == [
        [(each["start"], each["end"], each["entity_group"]) for each in pipeline(text)] for text in TEXTS
    ]
    assert any(found)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gates_come_out_for_every_token(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], precision: str
) -> None:
    runtime, texts = OnnxRuntime(exported("bert", precision), threads=1), random_tokens([4, 6])
    batch = runtime.embed(texts)
    for exit in range(4):
        batch, _, gates = runtime.run(exit, batch)
        with torch.inference_mode():
            expected = [
                models("bert")(input_ids=torch.tensor([text.ids])).exit_gates[0, :, exit] for text in texts
            ]
        np.testing.assert_allclose(
            gates, torch.cat(expected).numpy(), atol=1e-5 if precision == "fp32" else 0.1
        )
