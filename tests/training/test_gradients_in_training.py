"""The gradients of a training step, against gradients computed here from the plain losses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainingArguments

from offramp import ExitModel, Phase
from offramp.training import losses
from offramp.training.trainer import PhaseTrainer

Quick = Callable[..., TrainingArguments]
BATCH = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 5, 10, 6], [6, 6, 8, 5]]),
    "labels": torch.tensor([1, 0, 1]),
}


@pytest.fixture
def model(tiny_model: Callable[..., ExitModel]) -> ExitModel:
    model = tiny_model(layers=4, exits=[1, 2, 4])
    torch.manual_seed(3)
    with torch.no_grad():
        for classifier in model.heads.classifiers:
            classifier.weight.normal_(0, 2)
        # the opposite of an inner exit, so that their gradients conflict
        model.heads.poolers[2].dense.load_state_dict(model.heads.poolers[1].dense.state_dict())
        model.heads.classifiers[2].weight.copy_(-model.heads.classifiers[1].weight)
    return model


def step_gradients(model: ExitModel, phase: Phase, folder: Path, quick: Quick) -> dict[str, Tensor]:
    """The gradients after a training step of the phase."""
    trainer = PhaseTrainer(model, phase, "films", args=quick(folder))
    trainer.current_gradient_accumulation_steps = 1
    model.zero_grad()
    trainer.training_step(model, dict(BATCH))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def gradients(model: ExitModel, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(named[name]) if g is None else g for name, g in zip(named, found, strict=True)
    }


def terms(model: ExitModel) -> tuple[Tensor, Tensor, Tensor]:
    logits = model.train()(BATCH["input_ids"]).exit_logits
    every = [torch.nn.functional.cross_entropy(logits[:, exit], BATCH["labels"]) for exit in range(3)]
    return every[0], every[1], every[2]


def split_total(logits: Tensor, labels: Tensor, **more: Any) -> tuple[Tensor, ...]:
    return (*losses.final(logits, labels, **more), *losses.inner(logits, labels, **more))


@pytest.mark.parametrize("anchor", ["final", "inner"])
def test_projection_removes_the_conflict_from_the_layers_below_the_last_inner_exit(
    anchor: str, model: ExitModel, quick: Quick, tmp_path: Path
) -> None:
    first, second, last = terms(model)
    parts = {"final": gradients(model, last), "inner": gradients(model, first + second)}
    a, b = (parts[anchor], parts["inner" if anchor == "final" else "final"])
    chosen = [
        name
        for name, p in model.named_parameters()
        if ("encoder.layer.0." in name or "encoder.layer.1." in name) and p.ndim > 1
    ]
    dot = sum(float((a[name] * b[name]).sum()) for name in chosen)
    size = sum(float((a[name] ** 2).sum()) for name in chosen)
    assert dot < 0, "the gradients of this model conflict"
    found = step_gradients(model, Phase(split_total, gradients="projected", anchor=anchor), tmp_path, quick)
    for name, gradient in found.items():
        expected = a[name] + b[name] - (dot / size * a[name] if name in chosen else 0)
        torch.testing.assert_close(gradient, expected, msg=name)


def test_gradients_by_depth_divide_an_exits_loss_by_the_exits_from_there_on(
    model: ExitModel, quick: Quick, tmp_path: Path
) -> None:
    first, second, last = terms(model)
    expected = gradients(model, first / 3 + second / 2 + last)
    for name, gradient in step_gradients(
        model, Phase(losses.total, gradients="by_depth"), tmp_path, quick
    ).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_equilibrium_gives_each_layer_the_mean_of_the_exits_above(
    model: ExitModel, quick: Quick, tmp_path: Path
) -> None:
    first, second, last = (gradients(model, loss) for loss in terms(model))
    found = step_gradients(model, Phase(losses.total, gradients="equilibrium"), tmp_path, quick)
    query = "backbone.encoder.layer.{}.attention.self.query.weight"
    mean_of_three = (first[query.format(0)] + second[query.format(0)] + last[query.format(0)]) / 3
    torch.testing.assert_close(found[query.format(0)], mean_of_three)
    mean_of_two = (second[query.format(1)] + last[query.format(1)]) / 2
    torch.testing.assert_close(found[query.format(1)], mean_of_two)
    torch.testing.assert_close(found[query.format(3)], last[query.format(3)])
    head = "heads.classifiers.0.weight"
    torch.testing.assert_close(found[head], first[head])


def test_an_exit_before_the_first_layer_changes_no_gradient_of_the_backbone(
    tiny_model: Callable[..., ExitModel], quick: Quick, tmp_path: Path
) -> None:
    phase = Phase(losses.total, gradients="equilibrium")
    without, with_it = tiny_model(layers=3, exits=[1, 2, 3]), tiny_model(layers=3, exits=[0, 1, 2, 3])
    for exit in range(3):
        for part, source in zip(with_it.heads.parts(exit + 1), without.heads.parts(exit), strict=True):
            part.load_state_dict(source.state_dict())
    expected = step_gradients(without, phase, tmp_path / "without", quick)
    found = step_gradients(with_it, phase, tmp_path / "with", quick)
    backbone = [name for name in expected if name.startswith("backbone.")]
    assert backbone
    for name in backbone:
        torch.testing.assert_close(found[name], expected[name], msg=name)
