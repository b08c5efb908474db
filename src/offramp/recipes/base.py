"""Recipe and Phase: a way to train exits, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from offramp.errors import BadOption
from offramp.heads import check_choice
from offramp.losses import Loss, grouped, taught, total

TRAINABLE = ("all", "final", "exits")
GRADIENTS = ("plain", "equilibrium", "by_depth", "projected")
ANCHORS = ("task", "final", "inner")
NEEDS = ("weights", "gate")
HEAD_BATCH = 256
"""Examples per update of heads on stored features, where small batches would only cost time."""


@dataclass(frozen=True)
class Phase:
    """One training run of a recipe: which parameters, which loss, how many epochs."""

    loss: Loss
    """(logits, labels, **more) -> terms; see `offramp.losses` for the keywords."""
    trainable: str = "all"
    """Which parameters are updated: "all"; "final": the backbone and the last exit; "exits": those of the inner
    exits that the last one does not share."""
    epochs: float | None = None
    """By default `num_train_epochs` of the training arguments."""
    batch_size: int | None = None
    """Per device; by default that of the training arguments."""
    gradients: str = "plain"
    """"plain"; "equilibrium": each layer gets the mean over the exits above it; "by_depth": earlier exits get
    smaller gradients; "projected": conflicts between the last exit and the inner ones are removed."""
    anchor: str = "task"
    """With "projected", whose gradient is kept: that of the "final" exit, of the "inner" exits, or RomeBERT's
    choice for the "task"."""
    groups: int = 1
    """With "equilibrium", the number of groups of exits that are trained in turn."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of parameters whose names start with the key; all others use the training arguments'."""
    momentum: float | None = None
    """Decay of a momentum teacher, a moving average of the model; None for no teacher."""
    frozen_teacher: bool = False
    """Whether the model at the start of the phase is the teacher: the logits of its last exit are computed once."""
    standardize: bool = False
    """With trainable="exits", whether heads are trained on features of mean 0 and deviation 1."""
    unlabelled: bool = False
    """Whether text without labels is used too; the loss must allow for it."""
    needs_labels: bool = True

    def __post_init__(self) -> None:
        check_choice("trainable", self.trainable, TRAINABLE)
        check_choice("gradients", self.gradients, GRADIENTS)
        check_choice("anchor", self.anchor, ANCHORS)
        check_number(
            "groups", self.groups, "a whole number of 1 or more", lambda x: isinstance(x, int) and x >= 1
        )
        if self.trainable == "exits" and (self.momentum is not None or self.frozen_teacher):
            raise BadOption(
                "a phase with trainable='exits' is taught by the last exit; leave out other teachers"
            )
        if self.batch_size is not None:
            check_number(
                "batch_size", self.batch_size, "a whole number of 1 or more", lambda x: int(x) == x >= 1
            )
        if self.epochs is not None:
            check_number("epochs", self.epochs, "a number above 0", lambda x: x > 0)
        if self.momentum is not None:
            check_number("momentum", self.momentum, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        for name, rate in self.learning_rates.items():
            check_number(f"learning rate of {name}", rate, "a number of 0 or more", lambda x: x >= 0)


@dataclass(frozen=True)
class Recipe:
    """A named sequence of phases."""

    name: str
    phases: tuple[Phase, ...]
    needs: tuple[str, ...] = ()
    """What is added to the model: learned "weights" of the exits, a "gate"."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise BadOption(f"recipe {self.name!r} has no phases")
        for need in self.needs:
            check_choice("needs", need, NEEDS)


def balanced_phase(groups: int) -> Phase:
    """Train everything on the sum over all exits, or over groups of them in turn, with gradient equilibrium."""
    loss = partial(grouped, groups=groups) if groups != 1 else total
    return Phase(loss, gradients="equilibrium", groups=groups)


def head_phase(epochs: float, rate: float, temperature: float, label_weight: float) -> Phase:
    """Train the inner exits on stored features."""
    check_number("epochs", epochs, "a number above 0", lambda x: x > 0)
    check_number("rate", rate, "a number above 0", lambda x: x > 0)
    check_number("temperature", temperature, "a number above 0", lambda x: x > 0)
    check_number("label_weight", label_weight, "a number from 0 to 1", lambda x: 0 <= x <= 1)
    return Phase(
        partial(taught, temperature=temperature, label_weight=label_weight),
        trainable="exits",
        epochs=epochs,
        batch_size=HEAD_BATCH,
        learning_rates={"heads": rate},
        standardize=True,
        unlabelled=True,
        needs_labels=False,
    )


def check_number(name: str, value: Any, expected: str, fits: Callable[[Any], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and fits(value)):
        raise BadOption(f"{name}={value!r}; expected {expected}")


RecipeMaker = Callable[..., Recipe]
