"""Losses over all exits: pure functions (logits of all exits, labels) -> the terms that add up to the loss.

Logits are (examples, exits, outputs). Every loss takes what it needs by name and ignores the rest, so that one
call serves all of them, and so that a loss written elsewhere needs no base class:

    problem_type  as transformers names it
    weights       learned weights of the exits, before their sigmoid: (exits - 1,)
    gates         belief of each exit that it is right: (examples, exits)
    teacher       last logits of a slow teacher: (examples, outputs)
    step          how many updates went before, for losses that take turns; None in evaluation: all at once

Terms matter to the gradient projection, which sets the first (the last exit's) against the others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from offramp.errors import Incompatible
from offramp.model import task_loss
from offramp.problems import REGRESSION, SINGLE_LABEL

Terms = tuple[Tensor, ...]
Loss = Callable[..., Terms]


def final(logits: Tensor, labels: Tensor, *, problem_type: str = SINGLE_LABEL, **_: Any) -> Terms:
    """The last exit alone: plain fine-tuning."""
    return (task_loss(logits[:, -1:], labels, problem_type).sum(),)


def inner(logits: Tensor, labels: Tensor, *, problem_type: str = SINGLE_LABEL, **_: Any) -> Terms:
    """The sum over all exits but the last: DeeBERT's second phase."""
    return (task_loss(logits[:, :-1], labels, problem_type).sum(),)


def total(logits: Tensor, labels: Tensor, *, problem_type: str = SINGLE_LABEL, **_: Any) -> Terms:
    """The sum over all exits: ElasticBERT, and ELBERT with equal weights."""
    return (task_loss(logits, labels, problem_type).sum(),)


def index_weighted(logits: Tensor, labels: Tensor, *, problem_type: str = SINGLE_LABEL, **_: Any) -> Terms:
    """The mean over exits, each weighed by its number from 1: PABEE."""
    losses = task_loss(logits, labels, problem_type)
    numbers = torch.arange(1, len(losses) + 1, device=losses.device, dtype=losses.dtype)
    return ((numbers * losses).sum() / numbers.sum(),)


def learned(
    logits: Tensor, labels: Tensor, *, weights: Tensor, problem_type: str = SINGLE_LABEL, **_: Any
) -> Terms:
    """The sum over exits by learned weights that add up to their number: ELBERT.

    An inner exit weighs sigmoid(weight), the last one what is left, so exits worse than the last lose weight.
    """
    losses = task_loss(logits, labels, problem_type)
    share = weights.sigmoid()
    return ((share * losses[:-1]).sum() + (len(losses) - share.sum()) * losses[-1],)


def grouped(
    logits: Tensor,
    labels: Tensor,
    *,
    groups: int,
    step: int | None,
    problem_type: str = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """One group of exits in turn, the last exit always among them: ElasticBERT's grouped training."""
    member = in_group(logits.shape[1], groups, step)
    losses = task_loss(logits, labels, problem_type)
    return (torch.where(torch.tensor(member, device=losses.device), losses, 0 * losses).sum(),)


def in_group(exits: int, groups: int, step: int | None) -> list[bool]:
    """Which exits take part in this step: exit 0, 1, ... are dealt to the groups in turn."""
    if step is None:
        return [True] * exits
    return [exit % groups == step % groups or exit == exits - 1 for exit in range(exits)]


def alternating(
    logits: Tensor, labels: Tensor, *, step: int | None, problem_type: str = SINGLE_LABEL, **_: Any
) -> Terms:
    """The last exit in one step, all exits in the next: BERxiT."""
    losses = task_loss(logits, labels, problem_type)
    # times nought rather than left out: every exit has a gradient, which data-parallel training waits for
    return (losses[-1], losses[:-1].sum() * float(step is None or step % 2))


def gate_error(
    logits: Tensor, labels: Tensor, *, gates: Tensor, problem_type: str = SINGLE_LABEL, **_: Any
) -> Terms:
    """How far the gates are from knowing whether their exit is right: BERxiT's learning to exit."""
    return (functional.mse_loss(gates, rightness(logits.detach(), labels, problem_type)),)


def rightness(logits: Tensor, labels: Tensor, problem_type: str) -> Tensor:
    """(examples, exits), from 0 to 1."""
    if problem_type == SINGLE_LABEL:
        return (logits.argmax(-1) == labels.view(-1, 1)).to(logits.dtype)
    target = labels.view(len(labels), 1, -1)
    if problem_type == REGRESSION:
        return 1 - (logits - target).abs().mean(-1).tanh()
    return ((logits > 0) == (target > 0.5)).to(logits.dtype).mean(-1)


def self_distilled(
    logits: Tensor,
    labels: Tensor,
    *,
    kind: str = "raw",
    gamma: float = 0.9,
    temperature: float = 3.0,
    beta: float = 0.1,
    span: int = 2,
    teacher: Tensor | None = None,
    problem_type: str = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """RomeBERT: the last exit learns from the labels, the inner ones from labels and a teacher as well.

    Terms: the last exit, the distillation of the inner ones, their labels. By kind, an inner exit's teacher is
    "raw": the last exit (or the slow teacher); "ta": the next exit; "group": as raw, with labels on the sum of
    `span` neighbouring logits, weighed by `beta`; "bidir": the inner product with the last logits, which is summed
    over the batch, so its weight grows with the batch of one process.
    """
    if kind == "group" and (problem_type != SINGLE_LABEL or logits.shape[1] <= span):
        raise Incompatible(
            f"romebert's kind 'group' is for one label of several and more than {span} exits; "
            "take 'raw' or 'ta', or the recipe 'pabee'"
        )
    students, last = logits[:, :-1], logits[:, -1:]
    target = (
        last if teacher is None or kind == "ta" else teacher.unsqueeze(1)
    ).detach()  # (examples, 1, outputs)
    target = (
        torch.cat([students[:, 1:].detach(), target], dim=1) if kind == "ta" else target.expand_as(students)
    )
    losses = task_loss(logits, labels, problem_type)
    if kind == "bidir":
        distillation = -gamma * (students * target).sum()
    else:
        distillation = gamma * divergence(students, target, temperature, problem_type).sum()
    if kind == "group":
        sums = students.unfold(1, span, 1).sum(-1)  # (examples, exits - span, outputs)
        by_labels = beta * task_loss(sums, labels, problem_type).sum()
    else:
        by_labels = (1 - gamma) * losses[:-1].sum()
    return losses[-1], distillation, by_labels


def distilled(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 1.0,
    problem_type: str = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """Inner exits learn the last one's answers: FastBERT's self-distillation, which needs no labels."""
    students, last = logits[:, :-1], logits[:, -1:].detach()
    return (divergence(students, last.expand_as(students), temperature, problem_type).sum(),)


def divergence(student: Tensor, teacher: Tensor, temperature: float, problem_type: str) -> Tensor:
    """How far each exit is from its teacher: (examples, exits, outputs) twice -> (exits,).

    Divergences are means over examples and outputs, as RomeBERT's reduction was: KL divided by the number of
    classes. Numbers have no temperature, so regression takes the squared distance.
    """
    if problem_type == REGRESSION:
        return functional.mse_loss(student, teacher, reduction="none").mean(dim=(0, 2))
    student, teacher = student / temperature, teacher / temperature
    if problem_type == SINGLE_LABEL:
        away = functional.kl_div(
            student.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True
        )
    else:
        chance = teacher.sigmoid()
        cross = functional.binary_cross_entropy_with_logits(student, chance, reduction="none")
        away = cross - functional.binary_cross_entropy_with_logits(teacher, chance, reduction="none")
    return temperature**2 * away.mean(dim=(0, 2))
