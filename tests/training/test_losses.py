"""Losses against the values that the five original systems compute for the same logits."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from offramp.errors import Incompatible
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from offramp.training import losses
from offramp.training.losses import Loss

FOUR = [[0.5, -0.5], [1.0, -1.0], [0.0, 0.5], [2.0, -1.0]]  # one example, the logits of each exit
TWO_ROWS = [[[0.5, -0.5], [0.0, 0.3]], [[1.0, -1.0], [0.2, 0.9]], [[2.0, -1.0], [-0.5, 1.5]]]  # exit, row
THREE_CLASSES = [[0.2, 0.1, 0.0], [1.0, 0.0, -1.0], [2.0, 0.5, -1.0]]


def batch(per_exit: list[Any]) -> Tensor:
    """Logits written exit by exit -> (examples, exits, outputs)."""
    logits = torch.tensor(per_exit, dtype=torch.float64)
    return logits.unsqueeze(0) if logits.ndim == 2 else logits.transpose(0, 1)


def case(name: str, loss: Loss, logits: list[Any], label: Any, expected: float, **more: Any) -> Any:
    return pytest.param(loss, logits, label, expected, more, id=name)


SELF = losses.self_distillation


@pytest.mark.parametrize(
    ("loss", "logits", "label", "expected", "more"),
    [
        case("dee-loss-01", losses.final, FOUR, 0, 0.04858735),
        case("dee-loss-02", losses.inner, FOUR, 0, 1.41426668),
        case("dee-loss-05", losses.inner, [[1.0], [2.0], [2.5]], 2.0, 1.0, problem=REGRESSION),
        case("pabee-loss-01", losses.index_weighted, FOUR, 0, 0.36836981),
        case("pabee-loss-03", losses.index_weighted, TWO_ROWS, [0, 1], 0.20453259),
        case("elbert-loss-01", losses.total, FOUR, 0, 1.46285403),
        case("elbert-loss-02", losses.learned_weighted, FOUR, 0, 1.44003844, weights=[4.0, 4.0, 4.0]),
        case("elbert-loss-04", losses.learned_weighted, THREE_CLASSES, 2, 7.96992445, weights=[0.0, 2.0]),
        case("rome-loss-01", SELF, FOUR, 0, 1.04915231),
        case("rome-loss-03", SELF, TWO_ROWS, [0, 1], 0.39840541),
        case("rome-loss-05", partial(SELF, gamma=1.0), FOUR, 1, 4.00318545),
        case("rome-loss-07", partial(SELF, kind="ta"), FOUR, 0, 1.20861503),
        case("rome-loss-08", partial(SELF, kind="group", beta=0.1, span=2), FOUR, 0, 0.9327257),
        case("rome-loss-09", partial(SELF, kind="bidir"), FOUR, 0, -3.40998598),
        case("elastic-loss-01", losses.total, FOUR, 0, 1.46285403),
        case("elastic-loss-03", losses.total, TWO_ROWS, [0, 1], 0.78662318),
        case("elastic-loss-05", losses.final, FOUR, 0, 0.04858735),
    ],
)
def test_the_loss_equals_that_of_the_original(
    loss: Loss, logits: list[Any], label: Any, expected: float, more: dict[str, Any]
) -> None:
    more = {name: torch.tensor(value) if name == "weights" else value for name, value in more.items()}
    terms = loss(batch(logits), torch.tensor([label]).flatten(), **more)
    assert float(sum(terms)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("logits", "label", "settings", "expected"),
    [
        (FOUR, 0, {}, (0.04858735, 0.85913829, 0.14142667)),
        (TWO_ROWS, [0, 1], {}, (0.08775768, 0.24076117, 0.06988655)),
        (FOUR, 1, {"gamma": 1.0}, (3.04858735, 0.9545981, 0.0)),
        (FOUR, 0, {"kind": "ta"}, (0.04858735, 1.01860101, 0.14142667)),
        (FOUR, 0, {"kind": "group"}, (0.04858735, 0.85913829, 0.02500006)),
        (FOUR, 0, {"kind": "bidir"}, (0.04858735, -3.6, 0.14142667)),
    ],
)
def test_self_distillation_has_the_terms_of_the_original(
    logits: list[Any], label: Any, settings: dict[str, Any], expected: tuple[float, ...]
) -> None:
    terms = SELF(batch(logits), torch.tensor([label]).flatten(), **settings)
    assert [float(term) for term in terms] == pytest.approx(list(expected), abs=1e-7)


def test_a_momentum_teacher_replaces_the_last_exit() -> None:
    logits, label = batch(FOUR), torch.tensor([0])
    own = SELF(logits, label, teacher=logits[:, -1])
    other = SELF(logits, label, teacher=-logits[:, -1])
    assert torch.equal(own[1], SELF(logits, label)[1])
    assert other[1] > own[1]
    assert torch.equal(other[0], own[0])


@pytest.mark.parametrize("kind", ["raw", "ta"])
def test_teachers_get_no_gradient_from_distillation(kind: str) -> None:
    logits = batch(FOUR).requires_grad_()
    _, distillation, _ = SELF(logits, torch.tensor([0]), kind=kind)
    distillation.backward()
    assert logits.grad is not None
    assert logits.grad[:, -1].abs().sum() == 0
    assert logits.grad[:, :-1].abs().sum() > 0


def test_learned_weights_fall_for_exits_worse_than_the_last() -> None:
    # dLoss/dW_i = s_i (1 - s_i) (CE_i - CE_n)
    weights = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    logits, label = batch(THREE_CLASSES), torch.tensor([2])
    (loss,) = losses.learned_weighted(logits, label, weights=weights)
    loss.backward()
    exits = torch.nn.functional.cross_entropy(logits[0], label.repeat(3), reduction="none")
    share = torch.sigmoid(weights.detach())
    expected = share * (1 - share) * (exits[:-1] - exits[-1])
    torch.testing.assert_close(weights.grad, expected)


def test_groups_are_trained_in_turn_and_all_include_the_last_exit() -> None:
    # twelve exits in two groups: {1, 3, 5, 7, 9, 11, 12} and {2, 4, 6, 8, 10, 12}, counted from 1
    def members(step: int) -> list[int]:
        return [exit + 1 for exit, member in enumerate(losses.group_members(12, 2, step)) if member]

    assert members(0) == [1, 3, 5, 7, 9, 11, 12]
    assert members(1) == [2, 4, 6, 8, 10, 12]
    assert members(2) == members(0)


def test_grouped_exits_get_gradients_only_in_their_turn() -> None:
    label = torch.tensor([0])
    for step in (0, 1):
        logits = batch(FOUR).requires_grad_()
        (loss,) = losses.grouped(logits, label, groups=2, step=step)
        loss.backward()
        assert logits.grad is not None
        trained = (logits.grad.abs().sum((0, 2)) > 0).tolist()
        assert trained == losses.group_members(4, 2, step)


def test_alternating_is_the_last_exit_then_all_exits() -> None:
    logits, label = batch(FOUR), torch.tensor([0])
    even = sum(losses.alternating(logits, label, step=0))
    odd = sum(losses.alternating(logits, label, step=1))
    assert float(even) == pytest.approx(0.04858735)
    assert float(odd) == pytest.approx(1.46285403)


@pytest.mark.parametrize(
    ("problem", "outputs"),
    [(SINGLE_LABEL, 3), (MULTI_LABEL, 3), (REGRESSION, 1)],
)
def test_distillation_is_zero_for_equal_exits_and_positive_otherwise(problem: Problem, outputs: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3, outputs)
    same = logits[:, -1:].expand(-1, 3, -1)
    assert float(losses.distillation(same, problem=problem)[0]) == pytest.approx(0, abs=1e-6)
    assert float(losses.distillation(logits, problem=problem)[0]) > 0.01


@pytest.mark.parametrize("problem", [REGRESSION, MULTI_LABEL])
def test_self_distillation_in_groups_needs_classes(problem: Problem) -> None:
    with pytest.raises(Incompatible, match="pabee"):
        SELF(torch.zeros(2, 3, 1), torch.zeros(2), kind="group", problem=problem)


def test_self_distillation_in_groups_needs_more_exits_than_its_span() -> None:
    with pytest.raises(Incompatible, match="more than 3 exits"):
        SELF(torch.zeros(2, 3, 2), torch.zeros(2, dtype=torch.long), kind="group", span=3)


def test_bidirectional_distillation_for_regression() -> None:
    # exits predict 1, 2 and 3, the label is 2: last exit 1; distillation -0.9 (1 x 3 + 2 x 3); labels 0.1 (1 + 0)
    logits = batch([[1.0], [2.0], [3.0]])
    terms = SELF(logits, torch.tensor([2.0]), kind="bidir", problem=REGRESSION)
    assert [float(term) for term in terms] == pytest.approx([1.0, -8.1, 0.1])


def test_kind_ta_ignores_the_momentum_teacher() -> None:
    logits, label = batch(FOUR), torch.tensor([0])
    alone = SELF(logits, label, kind="ta")
    assert torch.equal(SELF(logits, label, kind="ta", teacher=-logits[:, -1])[1], alone[1])


@pytest.mark.parametrize(
    ("problem", "logits", "labels", "expected"),
    [
        (SINGLE_LABEL, [[[2.0, 1.0], [1.0, 2.0]]], [1], [[0.0, 1.0]]),
        (MULTI_LABEL, [[[2.0, -1.0], [1.0, 2.0]]], [[1.0, 0.0]], [[1.0, 0.5]]),
        (REGRESSION, [[[2.0], [2.5]]], [2.0], [[1.0, 1 - 0.46211716]]),
    ],
)
def test_correctness_by_problem_type(problem: Problem, logits: Any, labels: Any, expected: Any) -> None:
    found = problem.correctness(torch.tensor(logits), torch.tensor(labels))
    torch.testing.assert_close(found, torch.tensor(expected))


def test_what_an_unlabelled_example_teaches_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, losses.UNLABELLED, losses.UNLABELLED, losses.UNLABELLED])

    def gradient(*batches: slice) -> torch.Tensor:
        """The gradient of the mean over batches of equal size, as in data-parallel training."""
        given = logits.clone().requires_grad_()
        parts = [torch.stack(losses.teacher_loss(given[each], labels[each])).sum() for each in batches]
        torch.stack(parts).mean().backward()
        assert given.grad is not None
        return given.grad

    torch.testing.assert_close(gradient(slice(0, 4)), gradient(slice(0, 2), slice(2, 4)))
