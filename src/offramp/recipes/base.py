"""A published way of training exits, as data: phases one after the other, each with its loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from offramp.errors import UnfitRecipe
from offramp.losses import Loss

TRAINABLE = ("all", "final", "exits")
GRADIENTS = ("plain", "equilibrium", "by_depth", "projected")
ANCHORS = ("task", "final", "inner")


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
        if self.groups < 1:
            raise UnfitRecipe(f"groups={self.groups}; exits take turns in one group or more")


@dataclass(frozen=True)
class Recipe:
    """A name and its phases. A recipe of your own is one of these."""

    name: str
    phases: tuple[Phase, ...]
    needs: tuple[str, ...] = ()
    """What the model must have besides its exits: "weights" of the exits that learn, a "gate"."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise UnfitRecipe(f"recipe {self.name!r} has no phases; give it at least one")


def choose(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnfitRecipe(f"{name}={value!r}; choose one of {', '.join(choices)}")


RecipeMaker = Callable[..., Recipe]
