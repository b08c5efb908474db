"""Losses over all exits: pure functions (logits, labels, **more) -> the terms that add up to the loss.

Logits are (examples, exits, outputs). Every loss is called with all of these keywords, takes those it needs and
ignores the rest; a loss of your own is any such function:

    problem  single label, multi-label or regression: `offramp.problems`
    weights  learned weights of the exits, before the sigmoid: (exits - 1,)
    gates    each gate's probability that its exit is correct: (examples, exits)
    teacher  logits of a teacher's last exit, momentum or frozen: (examples, outputs)
    step     number of updates so far, for losses that alternate; None in evaluation

The terms are separate for gradient projection, which treats the first (the last exit's) and the others apart.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from offramp.errors import Incompatible
from offramp.problems import SINGLE_LABEL, UNLABELLED, Problem, SingleLabel

Terms = tuple[Tensor, ...]
Loss = Callable[..., Terms]


def final(logits: Tensor, labels: Tensor, *, problem: Problem = SINGLE_LABEL, **_: Any) -> Terms:
    """The last exit alone: plain fine-tuning."""
    return (problem.loss(logits[:, -1:], labels).sum(),)


def inner(logits: Tensor, labels: Tensor, *, problem: Problem = SINGLE_LABEL, **_: Any) -> Terms:
    """The sum over all exits but the last: DeeBERT's second phase."""
    return (problem.loss(logits[:, :-1], labels).sum(),)


def total(logits: Tensor, labels: Tensor, *, problem: Problem = SINGLE_LABEL, **_: Any) -> Terms:
    """The sum over all exits: ElasticBERT, and ELBERT with equal weights."""
    return (problem.loss(logits, labels).sum(),)


def index_weighted(logits: Tensor, labels: Tensor, *, problem: Problem = SINGLE_LABEL, **_: Any) -> Terms:
    """The mean over exits, weighted by their number from 1: PABEE."""
    losses = problem.loss(logits, labels)
    numbers = torch.arange(1, len(losses) + 1, device=losses.device, dtype=losses.dtype)
    return ((numbers * losses).sum() / numbers.sum(),)


def learned_weighted(
    logits: Tensor, labels: Tensor, *, weights: Tensor, problem: Problem = SINGLE_LABEL, **_: Any
) -> Terms:
    """The sum over exits with learned weights, which add up to the number of exits: ELBERT.

    An inner exit has weight sigmoid(w) and the last one the remainder, so exits worse than the last lose weight.
    """
    losses = problem.loss(logits, labels)
    share = weights.sigmoid()
    return ((share * losses[:-1]).sum() + (len(losses) - share.sum()) * losses[-1],)


def grouped(
    logits: Tensor,
    labels: Tensor,
    *,
    groups: int,
    step: int | None,
    problem: Problem = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """The sum over one group of exits per step, always including the last exit: ElasticBERT's grouped training."""
    members = group_members(logits.shape[1], groups, step)
    losses = problem.loss(logits, labels)
    return (torch.where(torch.tensor(members, device=losses.device), losses, 0 * losses).sum(),)


def group_members(exits: int, groups: int, step: int | None) -> list[bool]:
    """Which exits are trained in this step: exit i belongs to group i modulo `groups`, the last exit to all."""
    if step is None:
        return [True] * exits
    return [exit % groups == step % groups or exit == exits - 1 for exit in range(exits)]


def alternating(
    logits: Tensor, labels: Tensor, *, step: int | None, problem: Problem = SINGLE_LABEL, **_: Any
) -> Terms:
    """The last exit alone in even steps, all exits in odd ones: BERxiT."""
    losses = problem.loss(logits, labels)
    # multiplied by zero so that DDP sees a gradient of every exit
    return (losses[-1], losses[:-1].sum() * float(step is None or step % 2))


def gate_loss(
    logits: Tensor, labels: Tensor, *, gates: Tensor, problem: Problem = SINGLE_LABEL, **_: Any
) -> Terms:
    """Squared error of the gates as predictions of correctness: BERxiT's learning to exit."""
    return (functional.mse_loss(gates, problem.correctness(logits.detach(), labels)),)


def self_distillation(
    logits: Tensor,
    labels: Tensor,
    *,
    kind: str = "raw",
    gamma: float = 0.9,
    temperature: float = 3.0,
    beta: float = 0.1,
    span: int = 2,
    teacher: Tensor | None = None,
    problem: Problem = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """The last exit learns from labels, the inner exits from labels and a teacher: RomeBERT.

    Terms: loss of the last exit, distillation of the inner exits, loss of the inner exits. The kinds are

    - "raw": the teacher is the last exit, or the momentum teacher;
    - "ta": the teacher is the next exit;
    - "group": as "raw", but the labels are compared with sums of `span` neighboring logits, weighted by `beta`;
    - "bidir": the negative inner product with the last exit's logits. It is summed, not averaged, over the
      batch of a process, so its weight grows with that batch.
    """
    if kind == "group" and (problem != SINGLE_LABEL or logits.shape[1] <= span):
        raise Incompatible(
            f"romebert with kind 'group' needs single-label classification and more than {span} exits; "
            "use kind 'raw' or 'ta', or the recipe 'pabee'"
        )
    students, last = logits[:, :-1], logits[:, -1:]  # (examples, exits - 1, outputs), (examples, 1, outputs)
    if kind == "ta":
        target = logits[:, 1:].detach()
    else:
        target = (last if teacher is None else teacher.unsqueeze(1)).detach().expand_as(students)
    losses = problem.loss(logits, labels)
    if kind == "bidir":
        distance = -gamma * (students * target).sum()
    else:
        distance = gamma * problem.divergence(students, target, temperature).sum()
    if kind == "group":
        sums = students.unfold(1, span, 1).sum(-1)  # (examples, exits - span, outputs)
        supervised = beta * problem.loss(sums, labels).sum()
    else:
        supervised = (1 - gamma) * losses[:-1].sum()
    return losses[-1], distance, supervised


def distillation(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 1.0,
    problem: Problem = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """The divergence of the inner exits from the last one, which needs no labels: FastBERT."""
    students, last = logits[:, :-1], logits[:, -1:].detach()
    return (problem.divergence(students, last.expand_as(students), temperature).sum(),)


def teacher_loss(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    teacher: Tensor | None = None,
    temperature: float = 2.0,
    label_weight: float = 0.5,
    problem: Problem = SINGLE_LABEL,
    **_: Any,
) -> Terms:
    """Each exit learns from the labels, where there are any, and from a frozen teacher.

    The last exit learns too if the teacher is another model; otherwise it is the teacher of the inner exits.
    """
    if teacher is None:
        students, teacher = logits[:, :-1], logits[:, -1].detach()
    else:
        students = logits
    target = teacher.unsqueeze(1).expand_as(students)
    # `divergence` divides by the classes
    outputs = students.shape[-1] if isinstance(problem, SingleLabel) else 1
    distance = outputs * problem.divergence(students, target, temperature).sum()
    if labels is None:
        return (distance,)
    from_teacher = (1 - label_weight) * distance
    has_label = labelled(labels)
    if not has_label.any():  # in this batch; others have labels
        return (from_teacher,)
    supervised = problem.loss(students[has_label], labels[has_label]).sum()
    share = has_label.float().mean()  # so that unlabelled examples do not raise the weight of the others
    return (label_weight * share * supervised, from_teacher)


def labelled(labels: Tensor) -> Tensor:
    """Which examples have a label: (examples,). Unlabelled ones have -100, or NaN if labels are not classes."""
    if labels.dtype.is_floating_point:
        return ~labels.reshape(len(labels), -1).isnan().any(-1)
    return labels != UNLABELLED
