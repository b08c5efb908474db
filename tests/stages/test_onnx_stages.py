"""Stages in ONNX Runtime: rows leave and batches merge, and a folder that is not whole is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offramp.errors import BadOption, CannotLoad
from offramp.model import ExitModel
from offramp.onnx_export import export
from offramp.stages import Stages, Tokens
from offramp.stages.onnx import OnnxStages


@pytest.fixture(scope="module")
def model(tiny_encoder: Callable[..., Any]) -> ExitModel:
    torch.manual_seed(0)
    return ExitModel.from_encoder(tiny_encoder("bert"), num_labels=3, exits=[1, 2])


@pytest.fixture(scope="module")
def folder(model: ExitModel, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(model, tmp_path_factory.mktemp("exported") / "model", tokenizer=tokenizer)


def tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(1)
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def expected(model: ExitModel, text: Tokens) -> np.ndarray:
    """(exits, labels) from the model's forward, for one text alone."""
    types = None if text.types is None else torch.tensor([text.types])
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([text.ids]), token_type_ids=types).exit_logits
    assert logits is not None
    return logits[0].numpy()


def test_stage_by_stage_equals_forward_while_rows_leave_and_batches_merge(
    model: ExitModel, folder: Path
) -> None:
    stages, texts = OnnxStages(folder), tokens([7, 3, 11, 1, 5, 7])
    assert isinstance(stages, Stages)
    truth = [expected(model, text) for text in texts]

    def check(exit: int, logits: np.ndarray, rows: list[int]) -> None:
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, [truth[row][exit] for row in rows], atol=2e-5)

    left, right = stages.embed(texts[:4]), stages.embed(texts[4:])
    left, logits, gates = stages.run(0, left)
    assert gates is None
    check(0, logits, [0, 1, 2, 3])
    right, logits, _ = stages.run(0, right)
    check(0, logits, [4, 5])
    left = stages.keep(left, np.array([0, 1, 3]))
    assert left.hidden.shape[1] == 7
    whole, logits, _ = stages.run(1, stages.merge([left, right]))
    check(1, logits, [0, 1, 3, 4, 5])
    _, logits, _ = stages.run(2, stages.keep(whole, np.array([0, 4])))
    check(2, logits, [0, 5])


def test_exits_may_be_skipped(model: ExitModel, folder: Path) -> None:
    stages, text = OnnxStages(folder), tokens([6])
    _, logits, _ = stages.run(2, stages.embed(text))
    np.testing.assert_allclose(logits[0], expected(model, text[0])[2], atol=2e-5)


def test_segments_of_a_pair_reach_the_model(model: ExitModel, folder: Path) -> None:
    stages, texts = OnnxStages(folder), [Tokens([3, 4, 5], [0, 1, 1]), Tokens([6, 7], None)]
    _, logits, _ = stages.run(0, stages.embed(texts))
    np.testing.assert_allclose(logits, [expected(model, text)[0] for text in texts], atol=2e-5)


def test_stages_tell_what_a_trace_says_of_them(model: ExitModel, folder: Path) -> None:
    stages = OnnxStages(folder)
    about = stages.about()
    assert stages.precision == "fp32"
    assert about["fingerprint"] == model.fingerprint()
    assert about["runtime"].startswith("onnxruntime ")
    assert about["shape"]["layers"] == 4


def spoil(folder: Path, **changes: Any) -> None:
    file = folder / "stages.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "stage-02.onnx").unlink(), "stage-02.onnx is missing"),
        (
            lambda folder: (folder / "stage-02.onnx").write_bytes(b"no graph"),
            "stage-02.onnx cannot be loaded",
        ),
        (lambda folder: (folder / "weights.bin").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "stages.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "stages.json").write_text("{}"), "has no embedding"),
        (lambda folder: spoil(folder, format=99), "upgrade offramp"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    folder: Path, tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    damage(copy)
    with pytest.raises(CannotLoad, match=reason):
        OnnxStages(copy)


def test_no_threads_are_too_few(folder: Path) -> None:
    with pytest.raises(BadOption, match="at least 1"):
        OnnxStages(folder, threads=0)
