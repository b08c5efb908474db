"""Heads that read the two texts of a pair apart, from the model's forward to exported graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding

from offramp.engine import Engine
from offramp.errors import BadConfig
from offramp.models.exit_model import ExitModel
from offramp.models.heads import HeadConfig, pool
from offramp.onnx_export import export
from offramp.onnx_export.one_file import one_file
from offramp.policy import Policy
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import OnnxRuntime
from offramp.runtimes.torch import TorchRuntime
from offramp.training.features import collect_features, fold_scaling_into_head, measure_scaling

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tiny_classifier: Make) -> ExitModel:
    """A cross-encoder of three layers, whose own head reads the first token."""
    torch.manual_seed(0)
    model = ExitModel.from_encoder(
        tiny_classifier("bert", layers=3, num_labels=1), head=HeadConfig(pooling="pair")
    )
    for head in model.heads.classifiers:
        torch.nn.init.normal_(head.weight, std=0.5)
    return model


@pytest.fixture(scope="module")
def pairs() -> list[Tokens]:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 12, (24, 2)).tolist()
    return [
        Tokens(draw.integers(2, 60, first + second).tolist(), [0] * first + [1] * second)
        for first, second in sizes
    ]


@pytest.fixture(scope="module")
def truth(model: ExitModel, pairs: list[Tokens]) -> np.ndarray:
    """(pairs, exits, 1) from the model's forward, one pair at a time."""
    with torch.inference_mode():
        every = [model(torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.types])) for pair in pairs]
    return np.concatenate([output.exit_logits.numpy() for output in every])


def test_a_pair_is_pooled_as_two_means_their_product_and_their_distance() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [5.0], [100.0]]])
    mask, types = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[0, 0, 1, 0]])
    assert pool(hidden, mask, "pair", types).tolist() == [[2.0, 5.0, 10.0, 3.0]]
    assert pool(hidden[:, :3], None, "pair", types[:, :3]).tolist() == [[2.0, 5.0, 10.0, 3.0]]
    assert pool(hidden, mask, "pair").tolist() == [[3.0, 0.0, 0.0, 3.0]]  # a single text


def test_the_last_exit_stays_that_of_the_cross_encoder(tiny_classifier: Make) -> None:
    plain = tiny_classifier("bert", layers=3, num_labels=1)
    model = ExitModel.from_encoder(plain, head=HeadConfig(pooling="pair"))
    assert model.heads.poolings == ["pair", "pair", "pair", "first"]
    ids, types = torch.tensor([[2, 5, 3, 7, 3]]), torch.tensor([[0, 0, 0, 1, 1]])
    with torch.inference_mode():
        torch.testing.assert_close(
            model(ids, token_type_ids=types).logits, plain(ids, token_type_ids=types).logits
        )


@pytest.mark.parametrize("kind", ["torch", "fp32", "int8"])
def test_rows_that_leave_and_neighbours_change_no_pair(
    model: ExitModel, pairs: list[Tokens], truth: np.ndarray, tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    runtime: Any = TorchRuntime(model)
    if kind != "torch":
        words = [("a b c d", "e f g h i j"), ("k l", "m"), ("n", "o p q r s t u v")]
        runtime = OnnxRuntime(export(model, tmp_path / "out", kind, tokenizer, texts=words), threads=1)
    alone = np.concatenate([Engine(runtime).trace([pair])[0] for pair in pairs])
    if kind == "int8":
        assert np.corrcoef(alone[:, 1].ravel(), truth[:, 1].ravel())[0, 1] > 0.97
    else:
        np.testing.assert_allclose(alone, truth, atol=1e-4)
    together = Engine(runtime, batch_tokens=60).trace(pairs)[0]
    np.testing.assert_allclose(together, alone, atol=1e-5 if kind == "torch" else 0)

    left, right = (runtime.run(0, runtime.embed(half))[0] for half in (pairs[:12], pairs[12:]))
    left = runtime.keep(left, np.array([1, 4, 5]))
    _, logits, _ = runtime.run(2, runtime.merge([left, right]))
    expected = alone[[1, 4, 5, *range(12, 24)], 2]
    np.testing.assert_allclose(logits, expected, atol=1e-5 if kind == "torch" else 0)


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_in_one_file_pairs_exit_as_in_the_engine_and_neighbours_change_no_bit(
    model: ExitModel, pairs: list[Tokens], tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    words = [("a b c d", "e f g h i j"), ("k l", "m"), ("n", "o p q r s t u v")]
    folder = export(model, tmp_path / "out", kind, tokenizer, texts=words)
    policy = Policy.parse("patience:1,tolerance=0.3")
    stages = OnnxRuntime(folder, threads=1)
    whole = stages.compile(one_file(folder, policy).SerializeToString())
    exits, logits = whole.decide(pairs, policy)
    stages.compiled = None
    expected = Engine(stages).run(pairs, policy)
    assert len({*exits.tolist()}) > 1
    np.testing.assert_array_equal(exits, expected.exits)
    np.testing.assert_array_equal(logits, expected.logits)
    for row, pair in enumerate(pairs):
        alone = whole.decide([pair], policy)
        np.testing.assert_array_equal(
            np.hstack([alone[0], alone[1][0]]), np.hstack([exits[row], logits[row]])
        )


def test_stored_features_give_the_same_logits(
    model: ExitModel, pairs: list[Tokens], truth: np.ndarray, tokenizer: Any, tmp_path: Path
) -> None:
    columns = {
        "input_ids": [pair.ids for pair in pairs],
        "token_type_ids": [pair.types for pair in pairs],
        "attention_mask": [[1] * len(pair.ids) for pair in pairs],
        "length": [len(pair.ids) for pair in pairs],
    }
    rows, collator = Dataset.from_dict(columns), DataCollatorWithPadding(tokenizer)
    features = collect_features(model, rows, collator, tmp_path / "features.npy", 7, progress=False)
    vectors = features.__getitems__(range(len(pairs)))["features"]
    with torch.inference_mode():
        np.testing.assert_allclose(model(features=vectors).exit_logits.numpy(), truth, atol=5e-3)
    features.scaling = measure_scaling(features)
    fold_scaling_into_head(model, features.scaling, inverse=True)
    scaled = features.__getitems__(range(len(pairs)))["features"]
    with torch.inference_mode():
        np.testing.assert_allclose(model(features=scaled).exit_logits.numpy(), truth, atol=5e-3)
    fold_scaling_into_head(model, features.scaling)


def test_it_is_saved_and_cut_at_an_exit(
    model: ExitModel, pairs: list[Tokens], truth: np.ndarray, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    shorter = TorchRuntime(ExitModel.from_pretrained(tmp_path).truncate(2))
    np.testing.assert_allclose(Engine(shorter).trace(pairs)[0], truth[:, :3], atol=1e-4)


def test_an_encoder_without_token_types_refuses_it(tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match=r"modernbert.*choose 'mean'"):
        ExitModel.from_encoder(tiny_encoder("modernbert"), head=HeadConfig(pooling="pair"))
