"""A published way of training exits, as data: phases one after the other, each with its loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offramp.errors import Incompatible
from offramp.losses import Loss

TRAINABLE = ("all", "final", "exits")
GRADIENTS = ("plain", "equilibrium", "by_depth", "projected")
ANCHORS = ("task", "final", "inner")
NEEDS = ("weights", "gate")


@dataclass(frozen=True)
class Phase:
    """One part of a recipe: what learns, from which loss, for how long."""

    loss: Loss
    """(logits of all exits, labels, **more) -> terms; `offramp.losses` says what more there is."""
    trainable: str = "all"
    """Which weights move: "all"; "final": the backbone and the last exit; or "exits": what the inner exits do
    not share with the last, with the backbone frozen."""
    epochs: float | None = None
    """How long; by default what the training arguments say."""
    gradients: str = "plain"
    """"plain"; "equilibrium": each layer sees the mean over the exits above it; "by_depth": earlier exits have
    smaller gradients; "projected": conflict between the last exit and the inner ones is removed."""
    anchor: str = "task"
    """With "projected", whose gradient is left alone: the "final" exit's, the "inner" ones', or as RomeBERT
    chose it by "task"."""
    groups: int = 1
    """With "equilibrium", how many groups of exits take turns."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates other than the arguments' own, by the beginning of a parameter's name."""
    momentum: float | None = None
    """With a slow teacher: how much of it is kept at each step."""
    needs_labels: bool = True

    def __post_init__(self) -> None:
        choose("trainable", self.trainable, TRAINABLE)
        choose("gradients", self.gradients, GRADIENTS)
        choose("anchor", self.anchor, ANCHORS)
        number("groups", self.groups, "whole, from 1", lambda x: isinstance(x, int) and x >= 1)
        if self.epochs is not None:
            number("epochs", self.epochs, "above 0", lambda x: x > 0)
        if self.momentum is not None:
            number("momentum", self.momentum, "from 0 to 1", lambda x: 0 <= x <= 1)
        for name, rate in self.learning_rates.items():
            number(f"rate of {name}", rate, "from 0", lambda x: x >= 0)


@dataclass(frozen=True)
class Recipe:
    """A name and its phases. A recipe of your own is one of these."""

    name: str
    phases: tuple[Phase, ...]
    needs: tuple[str, ...] = ()
    """What the model must have besides its exits: "weights" of the exits that learn, a "gate"."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise Incompatible(f"recipe {self.name!r} has no phases; give it at least one")
        for need in self.needs:
            choose("needs", need, NEEDS)


def choose(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise Incompatible(f"{name}={value!r}; choose one of {', '.join(map(str, choices))}")


def number(name: str, value: Any, expected: str, fits: Callable[[Any], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and fits(value)):
        raise Incompatible(f"{name}={value!r}; expected a number, {expected}")


RecipeMaker = Callable[..., Recipe]
