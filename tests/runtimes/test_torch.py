"""What only the PyTorch runtime has: half precision, modes, threads, limits of the position table."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from offramp.models.backbones import BACKBONES
from offramp.models.exit_model import ExitModel
from offramp.runtimes import Tokens
from offramp.runtimes.torch import TorchRuntime


def tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(1)
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def first_logits(runtime: TorchRuntime, texts: list[Tokens]) -> np.ndarray:
    return runtime.run(0, runtime.embed(texts))[1]


def test_rows_of_equal_length_need_no_mask(make_model: Callable[..., ExitModel]) -> None:
    runtime = TorchRuntime(make_model())
    batch = runtime.embed(tokens([7, 3, 7]))
    assert batch.mask is not None
    assert runtime.keep(batch, np.array([0, 2])).mask is None


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_text_may_be_as_long_as_the_position_table_and_no_longer(
    make_model: Callable[..., ExitModel], backbone: str
) -> None:
    model = make_model(backbone)
    runtime = TorchRuntime(model)
    assert np.isfinite(first_logits(runtime, tokens([runtime.max_length]))).all()
    if isinstance(getattr(model.backbone.embeddings, "position_embeddings", None), torch.nn.Embedding):
        with pytest.raises((IndexError, RuntimeError)):
            runtime.embed(tokens([runtime.max_length + 1]))


def test_half_precision_is_close_and_returned_as_float32(make_model: Callable[..., ExitModel]) -> None:
    model, texts = make_model(), tokens([4, 9])
    exact = first_logits(TorchRuntime(model), texts)
    half = first_logits(TorchRuntime(model, autocast=torch.bfloat16), texts)
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, exact, atol=0.1)
    assert not np.array_equal(half, exact)


def test_a_model_in_training_is_set_to_evaluation(make_model: Callable[..., ExitModel]) -> None:
    runtime = TorchRuntime(make_model(head={"dropout": 0.9}).train())
    once, again = (first_logits(runtime, tokens([4])) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_threads_can_be_set(make_model: Callable[..., ExitModel]) -> None:
    before = torch.get_num_threads()
    try:
        TorchRuntime(make_model(), threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
