"""Heads trained on stored features: the same result as training on tokens, in one pass of the backbone."""

import copy
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from offramp import RECIPES, ExitModel, Task
from offramp.training import Trained, run
from offramp.training.features import (
    Features,
    can_standardize,
    fold_scaling_into_head,
    measure_scaling,
    shift_to_mean,
)

Make = Callable[..., ExitModel]
Fit = Callable[..., Trained]


@pytest.mark.parametrize("recipe", ["deebert", "fastbert"])
def test_heads_trained_on_features_equal_heads_trained_on_tokens(
    recipe: str, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = fit(RECIPES[recipe](fine_tune=False), folder="fast").model
    monkeypatch.setattr(run.Training, "train_heads", run.Training.train_backbone)
    slow = fit(RECIPES[recipe](fine_tune=False), folder="slow").model
    start = fit(RECIPES[recipe](fine_tune=False), folder="start", max_steps=1, learning_rate=0).model
    moved = 0.0
    for name, weight in slow.state_dict().items():
        moved = max(moved, float((weight - start.state_dict()[name]).abs().max()))
        torch.testing.assert_close(fast.state_dict()[name], weight, atol=1e-3, rtol=0)
    assert moved > 0.01


def test_the_backbone_runs_once_over_the_texts(
    fit: Fit, tiny_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = tiny_model(), []
    states = ExitModel.exit_states

    def counting(self: ExitModel, **inputs: Any) -> Any:
        seen.append(len(inputs["input_ids"]))
        return states(self, **inputs)

    monkeypatch.setattr(ExitModel, "exit_states", counting)
    monkeypatch.setattr(run, "exit_scores", lambda *_: {})
    monkeypatch.setattr(run.PhaseTrainer, "predict", lambda *_: None)
    fit("frozen", model, num_train_epochs=7)
    assert sum(seen) == 24 + 24  # the train and validation splits


def test_a_full_disk_is_an_error_before_the_backbone_runs(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    monkeypatch.setattr(ExitModel, "exit_states", None)
    with pytest.raises(OSError, match="No space left on device"):
        fit("frozen")


@pytest.mark.parametrize("head", [{}, {"pooler": "none"}, {"pooler": "none", "hidden": 8}])
def test_standardization_moves_into_the_weights_and_out_again(tiny_model: Make, head: dict[str, Any]) -> None:
    model = tiny_model(head=head)
    vectors = np.random.default_rng(0).normal(3, 5, (50, 4, 16)).astype(np.float16)
    features = Features(vectors, Dataset.from_dict({"length": [1] * 50}))
    scaling = measure_scaling(features)
    plain = torch.from_numpy(vectors.astype(np.float32))
    before = model(features=plain).exit_logits
    fold_scaling_into_head(model, scaling, inverse=True)
    torch.testing.assert_close(model(features=scaling.apply(plain)).exit_logits, before, atol=1e-4, rtol=1e-4)
    fold_scaling_into_head(model, scaling)
    torch.testing.assert_close(model(features=plain).exit_logits, before, atol=1e-4, rtol=1e-4)
    scaled = scaling.apply(plain)
    torch.testing.assert_close(scaled[:, :-1].mean(0), torch.zeros(3, 16), atol=1e-3, rtol=0)
    torch.testing.assert_close(scaled[:, -1], plain[:, -1])


def test_heads_that_share_their_first_layer_are_not_standardized(tiny_model: Make) -> None:
    assert can_standardize(tiny_model())
    assert not can_standardize(tiny_model(head={"pooler": "shared"}))


def test_frozen_leaves_the_backbone_and_the_last_exit_as_they_are(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    after = fit("frozen", model).model.state_dict()
    last = len(model.config.exits) - 1
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    for name in changed:
        assert name.startswith("heads."), name
        assert f".{last}." not in name


def test_joint_has_the_backbone_and_the_last_exit_of_elasticbert(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model()
    expected = fit("elasticbert", copy.deepcopy(model), folder="elasticbert").model.state_dict()
    found = fit("joint", model, folder="joint").model.state_dict()
    last = len(model.config.exits) - 1
    different = {name for name in found if not torch.equal(found[name], expected[name])}
    assert different
    assert all(name.startswith("heads.") and f".{last}." not in name for name in different)


@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "multi_label_classification", "regression"]
)
@pytest.mark.parametrize("recipe", ["frozen", "mixed", "joint"])
def test_unlabelled_text_is_used_beside_labels(
    recipe: str, problem_type: str, fit: Fit, tiny_model: Make, tiny_task: Callable[..., Task]
) -> None:
    task = tiny_task(problem_type)
    texts = Dataset.from_dict({"text": ["a very good plot", "not a good film"] * 30})
    made = {"num_labels": len(task.labels or [0]), "problem_type": problem_type}
    without = fit(recipe, tiny_model(**made), task, folder="without").model
    with_more = fit(recipe, tiny_model(**made), task, folder="with", unlabelled=texts).model
    assert all(weight.isfinite().all() for weight in with_more.state_dict().values())
    assert any(
        not torch.equal(weight, without.state_dict()[name]) for name, weight in with_more.state_dict().items()
    )


def test_an_interrupted_pass_is_started_again(fit: Fit, tmp_path: Path) -> None:
    whole = fit("frozen", folder="whole").model
    scratch = tmp_path / "cut" / "phase-1" / ".train.npy.killed.unfinished"
    scratch.mkdir(parents=True)
    (scratch / "train.npy").write_bytes(b"half")
    again = fit("frozen", folder="cut").model
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight)
    assert not list((tmp_path / "cut" / "phase-1").glob("*.npy"))


def test_exits_of_a_regression_start_at_the_mean_of_the_last(tiny_model: Make) -> None:
    model = tiny_model(num_labels=1)
    with torch.no_grad():
        model.heads.head_of(len(model.config.exits) - 1).classifier.bias.fill_(-3)  # type: ignore[operator, union-attr]
    vectors = np.random.default_rng(0).normal(0, 1, (50, 4, 16)).astype(np.float16)
    plain = torch.from_numpy(vectors.astype(np.float32))
    before = model(features=plain).exit_logits
    shift_to_mean(model, Features(vectors, Dataset.from_dict({"length": [1] * 50})))
    after = model(features=plain).exit_logits
    assert torch.equal(before[:, -1], after[:, -1])
    torch.testing.assert_close(after.mean(0), before[:, -1:].mean(0).expand(4, 1))


def test_heads_of_a_model_in_bf16_are_trained_on_features(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model()
    model.to(torch.bfloat16)
    assert fit("frozen", model).model.heads.classifiers[0].weight.dtype == torch.bfloat16
