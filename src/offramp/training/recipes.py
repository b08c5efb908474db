"""Recipes: training methods as data, by name. Each is a function whose arguments are the options of the method.

Pass a `Recipe` of your own to `train`, or add a function that returns one to `RECIPES`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import yaml
from torch import Tensor

from offramp.errors import BadOption, UnknownName
from offramp.models.heads import check_choice
from offramp.training import losses
from offramp.training.losses import Loss, grouped, teacher_loss, total
from offramp.wording import did_you_mean

TRAINABLE = ("all", "final", "exits")
GRADIENTS = ("plain", "equilibrium", "by_depth", "projected")
ANCHORS = ("task", "final", "inner")
NEEDS = ("weights", "gate")


class Range(NamedTuple):
    """The values that an option may have."""

    words: str
    has: Callable[[Any], bool]


POSITIVE = Range("a number above 0", lambda x: x > 0)
NOT_NEGATIVE = Range("a number of 0 or more", lambda x: x >= 0)
SHARE = Range("a number from 0 to 1", lambda x: 0 <= x <= 1)
COUNT = Range("a whole number of 1 or more", lambda x: isinstance(x, int) and x >= 1)
HEAD_BATCH = 256
"""Examples per update of heads on stored features, where small batches would only cost time."""


@dataclass(frozen=True)
class Phase:
    """One training run of a recipe: which parameters, which loss, how many epochs."""

    loss: Loss
    """(logits, labels, **more) -> terms; see `offramp.training.losses` for the keywords."""
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
        check_number("groups", self.groups, COUNT)
        if self.trainable == "exits" and (self.momentum is not None or self.frozen_teacher):
            raise BadOption(
                "a phase with trainable='exits' is taught by the last exit; leave out other teachers"
            )
        if self.batch_size is not None:
            check_number("batch_size", self.batch_size, COUNT)
        if self.epochs is not None:
            check_number("epochs", self.epochs, POSITIVE)
        if self.momentum is not None:
            check_number("momentum", self.momentum, SHARE)
        for name, rate in self.learning_rates.items():
            check_number(f"learning rate of {name}", rate, NOT_NEGATIVE)


@dataclass(frozen=True)
class Recipe:
    """A named sequence of phases."""

    name: str
    phases: tuple[Phase, ...]
    needs: tuple[str, ...] = ()
    """What is added to the model: learned "weights" of the exits, a "gate"."""
    exit_at_embeddings: bool = True
    """Whether `train` adds an exit before the first layer too; published recipes have none."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise BadOption(f"recipe {self.name!r} has no phases")
        for need in self.needs:
            check_choice("needs", need, NEEDS)

    @property
    def trains_backbone(self) -> bool:
        return any(phase.trainable != "exits" for phase in self.phases)


def balanced_phase(groups: int) -> Phase:
    """Train everything on the sum over all exits, or over groups of them in turn, with gradient equilibrium."""
    loss = partial(grouped, groups=groups) if groups != 1 else total
    return Phase(loss, gradients="equilibrium", groups=groups)


def head_phase(epochs: float, rate: float, temperature: float, label_weight: float) -> Phase:
    """Train the inner exits on stored features."""
    check_number("epochs", epochs, POSITIVE)
    check_number("rate", rate, POSITIVE)
    check_number("temperature", temperature, POSITIVE)
    check_number("label_weight", label_weight, SHARE)
    return Phase(
        partial(teacher_loss, temperature=temperature, label_weight=label_weight),
        trainable="exits",
        epochs=epochs,
        batch_size=HEAD_BATCH,
        learning_rates={"heads": rate},
        standardize=True,
        unlabelled=True,
        needs_labels=False,
    )


def check_number(name: str, value: Any, expected: Range) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and expected.has(value)):
        raise BadOption(f"{name}={value!r}; expected {expected.words}")


def published(name: str, *phases: Phase, needs: tuple[str, ...] = ()) -> Recipe:
    """A recipe with exits where its authors have them: after every layer, and none before the first."""
    return Recipe(name, phases, needs, exit_at_embeddings=False)


FINE_TUNE = Phase(losses.final, trainable="final")


def final() -> Recipe:
    """Plain fine-tuning: the last exit alone.

    *Relation*: the baseline of all recipes and the first phase of `deebert` and `fastbert`. With `ExitModel.truncate`
    it is ElasticBERT's static use. Inner exits are not trained.
    """
    return Recipe("final", (FINE_TUNE,))


def deebert(fine_tune: bool = True) -> Recipe:
    """DeeBERT: fine-tune as usual, then train the inner exits with everything else frozen.

    *Reference*: Xin et al. 2020, arXiv:2004.12993.
    *Relation*: as `fastbert`, but the inner exits learn from labels. The last exit is exactly that of plain
    fine-tuning. In the original, the frozen backbone still had dropout, and its gradients counted in the clipping
    norm; here it has neither.

    `fine_tune=False` skips the first phase, for a model whose last exit is already trained.
    """
    check_choice("fine_tune", fine_tune, (True, False))
    first = (FINE_TUNE,) if fine_tune else ()
    return published("deebert", *first, Phase(losses.inner, trainable="exits"))


def pabee() -> Recipe:
    """PABEE: all exits together, the mean of their losses weighted by exit number.

    *Reference*: Zhou et al. 2020, arXiv:2006.04152.
    *Relation*: as `elbert`, but with fixed weights that favor deeper exits.
    """
    return published("pabee", Phase(losses.index_weighted))


def elbert(weights: str = "learned", rate: float = 1e-2) -> Recipe:
    """ELBERT: all exits together, the sum of their losses with learned or equal weights.

    *Reference*: Xie et al. 2021, arXiv:2107.00175.
    *Relation*: as `pabee`, but the weights are learned: exits worse than the last one lose weight. They are
    parameters of the model, with a separate learning rate.

    `weights` is "learned" or "equal"; `rate` is the learning rate of learned weights.
    """
    check_choice("weights", weights, ("learned", "equal"))
    if weights == "equal":
        return published("elbert", Phase(losses.total))
    phase = Phase(losses.learned_weighted, learning_rates={"exit_weights": rate})
    return published("elbert", phase, needs=("weights",))


def romebert(
    kind: str = "raw",
    gamma: float = 0.9,
    temperature: float = 3.0,
    beta: float = 0.1,
    span: int = 2,
    gradients: str = "projected",
    anchor: str = "task",
    momentum: float | None = None,
) -> Recipe:
    """RomeBERT: inner exits learn from labels and from the last exit, with conflicting gradients removed.

    *Reference*: Geng et al. 2021, arXiv:2101.09755.
    *Relation*: as `fastbert`, but in one phase that also trains the backbone, which is why gradients are projected.

    Self-distillation ("raw", "ta", "group" or "bidir") with or without gradient regularization.

    Args:
        kind: the teacher of an inner exit, see `losses.self_distillation`.
        gamma: weight of the teacher; the labels have weight 1 - gamma.
        temperature: of the distillation.
        beta: weight of the labels with kind "group".
        span: number of neighboring exits that are summed with kind "group".
        gradients: "projected", "plain" or "by_depth".
        anchor: whose gradient the projection keeps: "final", "inner", or the original's choice for the "task".
        momentum: decay of a momentum teacher, 0.9999 in the original; None for no such teacher.
    """
    check_choice("kind", kind, ("raw", "ta", "group", "bidir"))
    check_number("gamma", gamma, SHARE)
    check_number("temperature", temperature, POSITIVE)
    check_number("beta", beta, NOT_NEGATIVE)
    check_number("span", span, COUNT)
    loss = partial(
        losses.self_distillation, kind=kind, gamma=gamma, temperature=temperature, beta=beta, span=span
    )
    return published("romebert", Phase(loss, gradients=gradients, anchor=anchor, momentum=momentum))


def elasticbert(groups: int = 1) -> Recipe:
    """ElasticBERT: the sum over all exits, with gradient equilibrium.

    *Reference*: Liu et al. 2022, arXiv:2110.07038.
    *Relation*: as `elbert` with equal weights, but a layer gets the mean of the gradients of the exits above it,
    so that early layers do not get larger gradients than late ones.

    `groups` > 1 splits the exits into groups that are trained in turn, each with the last exit.
    """
    return published("elasticbert", balanced_phase(groups))


def berxit() -> Recipe:
    """BERxiT: alternates between the last exit and all exits, and trains a gate that predicts correctness.

    *Reference*: Xin et al. 2021, EACL, "BERxiT: Early exiting for BERT with better fine-tuning and extension to
    regression".
    *Relation*: alternates between `final` and `elbert` with equal weights. The rule `gate` uses the gate, also for
    regression, where entropy is not defined.
    """
    return published("berxit", Phase(alternating_with_gate), needs=("gate",))


def alternating_with_gate(logits: Tensor, labels: Tensor, **more: Any) -> losses.Terms:
    return (*losses.alternating(logits, labels, **more), *losses.gate_loss(logits, labels, **more))


def fastbert(fine_tune: bool = True, temperature: float = 1.0) -> Recipe:
    """FastBERT: fine-tune as usual, then distil the last exit into the inner exits.

    *Reference*: Liu et al. 2020, arXiv:2004.02178.
    *Relation*: as `deebert`, but the second phase needs no labels, so any text of the domain can be used.

    `fine_tune=False` skips the first phase, for a trained model and unlabelled text.
    """
    check_choice("fine_tune", fine_tune, (True, False))
    check_number("temperature", temperature, POSITIVE)
    first = (FINE_TUNE,) if fine_tune else ()
    loss = partial(losses.distillation, temperature=temperature)
    return published("fastbert", *first, Phase(loss, trainable="exits", needs_labels=False))


def frozen(
    epochs: float = 10.0, rate: float = 1e-3, temperature: float = 2.0, label_weight: float = 0.5
) -> Recipe:
    """Frozen: heads for a model that stays as it is, taught by its last exit.

    *Relation*: as `fastbert` without its first phase, but on standardized features, with labels where there are any,
    and with text that has none. The predictions of the last exit do not change.

    `rate` is the learning rate of the heads; `label_weight` is 0 to learn from the last exit alone.
    """
    return Recipe("frozen", (head_phase(epochs, rate, temperature, label_weight),))


def mixed(
    fine_tune: bool = True,
    temperature: float = 2.0,
    label_weight: float = 0.5,
    head_epochs: float = 10.0,
    head_rate: float = 1e-3,
) -> Recipe:
    """Mixed: fine-tune the backbone first, then train everything with the fine-tuned model as teacher.

    *Reference*: the mixed regime of Kubaty et al. 2025, arXiv:2407.14320 (backbone first, then all exits), with
    distillation from the first phase as in `fastbert` and gradients in equilibrium as in `elasticbert`.
    *Relation*: as `elasticbert` after `final`; the frozen teacher keeps the last exit where fine-tuning left it and
    lets text without labels be used. A last phase trains the heads alone, on stored features.

    `fine_tune=False` leaves out the first phase, for a fine-tuned model; `head_epochs=0` leaves out the last.
    """
    loss = partial(teacher_loss, temperature=temperature, label_weight=label_weight)
    first = (FINE_TUNE,) if fine_tune else ()
    last = (head_phase(head_epochs, head_rate, temperature, label_weight),) if head_epochs else ()
    everything = Phase(
        loss, gradients="equilibrium", frozen_teacher=True, unlabelled=True, needs_labels=False
    )
    return Recipe("mixed", (*first, everything, *last))


def joint(
    groups: int = 1,
    temperature: float = 2.0,
    label_weight: float = 0.5,
    head_epochs: float = 10.0,
    head_rate: float = 1e-3,
) -> Recipe:
    """Joint: train everything together, then the heads of the inner exits alone.

    *Reference*: `elasticbert` (Liu et al. 2022, arXiv:2110.07038), then a phase as in `frozen`.
    *Relation*: labels train the backbone for all exits from the start; `mixed` trains it for the last exit first. The
    last phase, on stored features, can also use text without labels.

    `groups` as in `elasticbert`, the others as in `mixed`: `head_epochs=0` leaves out the last phase.
    """
    last = (head_phase(head_epochs, head_rate, temperature, label_weight),) if head_epochs else ()
    return Recipe("joint", (balanced_phase(groups), *last))


RECIPES: dict[str, Callable[..., Recipe]] = {
    "final": final,
    "deebert": deebert,
    "pabee": pabee,
    "elbert": elbert,
    "romebert": romebert,
    "elasticbert": elasticbert,
    "berxit": berxit,
    "fastbert": fastbert,
    "frozen": frozen,
    "mixed": mixed,
    "joint": joint,
}


def parse_recipe(text: str) -> Recipe:
    """A recipe by name, with or without options: `pabee`, `romebert:kind=ta,gamma=0.5`.

    >>> parse_recipe("elbert:weights=equal").phases[0].loss.__name__
    'total'
    """
    name, _, rest = text.partition(":")
    if name not in RECIPES:
        raise UnknownName(f"unknown recipe {did_you_mean(name, RECIPES)}")
    options = parse_key_values(rest.split(",") if rest else [])
    names = list(inspect.signature(RECIPES[name]).parameters)
    for key in options:
        if key not in names:
            raise BadOption(f"{name} has no option {did_you_mean(key, names) if names else repr(key)}")
    return RECIPES[name](**options)


def parse_key_values(parts: Iterable[str]) -> dict[str, Any]:
    """Values by key.

    >>> parse_key_values(["rate=5e-5", "gate=true", "kind=ta"])
    {'rate': 5e-05, 'gate': True, 'kind': 'ta'}
    """
    return {key: parse_value(value) for key, value in split_pairs(parts)}


def split_pairs(parts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise BadOption(f"{part!r}: expected key=value.")
        yield key.strip(), value.strip()


def parse_value(text: str) -> Any:
    """A YAML value; unlike in YAML, 5e-5 is a number."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


__all__ = ["RECIPES", "Phase", "Recipe", "parse_recipe"]
