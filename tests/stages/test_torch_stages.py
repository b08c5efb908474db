"""Stages in PyTorch against the model's own forward, which runs everything at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from offramp.backbones import BACKBONES
from offramp.model import ExitModel
from offramp.stages import Stages, Tokens
from offramp.stages.torch import TorchStages

LENGTHS = [7, 3, 11, 1, 5, 7]


def tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(1)
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def expected(model: ExitModel, text: Tokens) -> np.ndarray:
    """(exits, labels) from the model's forward, for one text alone."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([text.ids])).exit_logits
    assert logits is not None
    return logits[0].numpy()


@pytest.fixture(params=BACKBONES)
def model(request: pytest.FixtureRequest, tiny_encoder: Callable[..., Any]) -> ExitModel:
    torch.manual_seed(0)
    return ExitModel.from_encoder(tiny_encoder(request.param), num_labels=3, exits=[1, 3])


def test_stage_by_stage_equals_forward_while_rows_leave_and_batches_merge(model: ExitModel) -> None:
    stages, texts = TorchStages(model), tokens(LENGTHS)
    truth = [expected(model, text) for text in texts]

    def check(exit: int, logits: np.ndarray, rows: list[int]) -> None:
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, [truth[row][exit] for row in rows], atol=2e-5)

    assert stages.layers == (1, 3, 4)
    left, right = stages.embed(texts[:4]), stages.embed(texts[4:])
    left, logits, gates = stages.run(0, left)
    assert gates is None
    check(0, logits, [0, 1, 2, 3])
    right, logits, _ = stages.run(0, right)
    check(0, logits, [4, 5])
    left = stages.keep(left, np.array([0, 1, 3]))
    assert left.hidden.shape[1] == 7
    whole = stages.merge([left, right])
    whole, logits, _ = stages.run(1, whole)
    check(1, logits, [0, 1, 3, 4, 5])
    whole = stages.keep(whole, np.array([0, 4]))
    assert whole.mask is None
    whole, logits, _ = stages.run(2, whole)
    check(2, logits, [0, 5])


def test_a_text_may_be_as_long_as_the_positions_and_no_longer(model: ExitModel) -> None:
    stages = TorchStages(model)
    longest = stages.embed(tokens([stages.max_length]))
    assert np.isfinite(stages.run(0, longest)[1]).all()
    if isinstance(getattr(model.backbone.embeddings, "position_embeddings", None), torch.nn.Embedding):
        with pytest.raises((IndexError, RuntimeError)):
            stages.embed(tokens([stages.max_length + 1]))


def test_segments_of_a_pair_reach_the_model(tiny_encoder: Callable[..., Any]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2)
    stages = TorchStages(model)
    texts = [Tokens([3, 4, 5], [0, 1, 1]), Tokens([6, 7], [0, 1])]
    _, logits, _ = stages.run(0, stages.embed(texts))
    for row, text in enumerate(texts):
        ids, types = torch.tensor([text.ids]), torch.tensor([text.types])
        truth = model(input_ids=ids, token_type_ids=types).exit_logits
        np.testing.assert_allclose(logits[row], truth[0, 0].detach().numpy(), atol=1e-5)


def test_gates_come_out_with_the_logits(tiny_encoder: Callable[..., Any]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2, head={"gate": True})
    _, _, gates = TorchStages(model).run(0, TorchStages(model).embed(tokens([4, 4])))
    assert gates is not None
    assert gates.shape == (2,)


def test_half_precision_is_close_and_comes_out_as_float32(tiny_encoder: Callable[..., Any]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2)
    exact, half = TorchStages(model), TorchStages(model, autocast=torch.bfloat16)
    texts = tokens([4, 9])
    _, logits, _ = half.run(0, half.embed(texts))
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, exact.run(0, exact.embed(texts))[1], atol=0.1)
    assert not np.array_equal(logits, exact.run(0, exact.embed(texts))[1])


def test_the_model_is_evaluated_also_if_it_was_in_training(tiny_encoder: Callable[..., Any]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2, head={"dropout": 0.9})
    stages = TorchStages(model.train())
    once, again = (stages.run(0, stages.embed(tokens([4])))[1] for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_threads_can_be_set(tiny_encoder: Callable[..., Any]) -> None:
    before = torch.get_num_threads()
    stages = TorchStages(ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2), threads=2)
    try:
        assert torch.get_num_threads() == 2
        assert isinstance(stages, Stages)
    finally:
        torch.set_num_threads(before)
