"""Both runtimes against the model's own forward, which runs everything at once."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from offramp.models.backbones import BACKBONES
from offramp.models.exit_model import ExitModel
from offramp.onnx_export import export
from offramp.runtimes import Runtime, Tokens
from offramp.runtimes.onnx import OnnxRuntime
from offramp.runtimes.torch import TorchRuntime

RUNTIMES = ("torch", "onnx")
# tests/onnx_export runs the graphs of every backbone
RUNS = [*(("torch", backbone) for backbone in BACKBONES), ("onnx", "bert")]


@pytest.fixture(scope="module")
def load(
    tiny_encoder: Callable[..., Any], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[ExitModel, Any]]:
    """load("onnx", "bert") -> a model with a gate and exits at layers 1, 3 and 4, and its stages."""

    @cache
    def of(kind: str, backbone: str) -> tuple[ExitModel, Any]:
        torch.manual_seed(0)
        encoder = tiny_encoder(backbone)
        model = ExitModel.from_encoder(encoder, num_labels=3, exits=[1, 3], head={"gate": True})
        if kind == "torch":
            return model, TorchRuntime(model)
        folder = export(model, tmp_path_factory.mktemp("exported") / "model", tokenizer=tokenizer)
        return model, OnnxRuntime(folder, threads=1)

    return of


def tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(1)
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def expected(model: ExitModel, text: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Logits (exits, labels) and gates (exits,) from the model's forward, for one text alone."""
    types = None if text.types is None else torch.tensor([text.types])
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([text.ids]), token_type_ids=types)
    return output.exit_logits[0].numpy(), output.exit_gates[0].numpy()


@pytest.mark.parametrize(("kind", "backbone"), RUNS)
def test_stage_by_stage_equals_forward_while_rows_leave_and_batches_merge(
    load: Callable[[str, str], Any], kind: str, backbone: str
) -> None:
    model, runtime = load(kind, backbone)
    texts = tokens([7, 3, 11, 1, 5, 7])
    truth = [expected(model, text) for text in texts]

    def check(exit: int, outputs: Any, rows: list[int]) -> Any:
        state, logits, gates = outputs
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, [truth[row][0][exit] for row in rows], atol=2e-5)
        np.testing.assert_allclose(gates, [truth[row][1][exit] for row in rows], atol=2e-5)
        return state

    assert isinstance(runtime, Runtime)
    assert runtime.info.exits == (1, 3, 4)
    left = check(0, runtime.run(0, runtime.embed(texts[:4])), [0, 1, 2, 3])
    right = check(0, runtime.run(0, runtime.embed(texts[4:])), [4, 5])
    left = runtime.keep(left, np.array([0, 1, 3]))
    assert left.hidden.shape[1] == 7
    whole = check(1, runtime.run(1, runtime.merge([left, right])), [0, 1, 3, 4, 5])
    check(2, runtime.run(2, runtime.keep(whole, np.array([0, 4]))), [0, 5])


@pytest.mark.parametrize("kind", RUNTIMES)
def test_exits_may_be_skipped(load: Callable[[str, str], Any], kind: str) -> None:
    model, runtime = load(kind, "bert")
    text = tokens([6])
    _, logits, _ = runtime.run(2, runtime.embed(text))
    np.testing.assert_allclose(logits[0], expected(model, text[0])[0][2], atol=2e-5)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_token_types_reach_the_model_and_are_zero_by_default(
    load: Callable[[str, str], Any], kind: str
) -> None:
    model, runtime = load(kind, "bert")
    texts = [Tokens([3, 4, 5], [0, 1, 1]), Tokens([6, 7]), Tokens([6, 7], [0, 1])]
    _, logits, _ = runtime.run(0, runtime.embed(texts))
    np.testing.assert_allclose(logits, [expected(model, text)[0][0] for text in texts], atol=2e-5)
    assert not np.allclose(logits[1], logits[2], atol=1e-3)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_a_runtime_identifies_itself_and_its_model(load: Callable[[str, str], Any], kind: str) -> None:
    model, runtime = load(kind, "bert")
    assert runtime.precision == "fp32"
    assert runtime.info.has_gate
    assert runtime.fingerprint() == model.fingerprint()
    assert runtime.name.startswith({"torch": "torch ", "onnx": "onnxruntime "}[kind])
    assert runtime.info.shape == {
        "hidden": 16,
        "intermediate": 24,
        "heads": 2,
        "layers": 4,
        "pooler": 1,
        "head_hidden": 0,
        "correction": 0,
    }
