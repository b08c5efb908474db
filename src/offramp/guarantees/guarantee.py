"""Guarantee: a bound on one or several risks that is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from offramp.errors import BadOption, UnknownName
from offramp.guarantees.losses import LOSSES, OF_TAGS, RISKS, Loss
from offramp.problems import Problem
from offramp.tags import TagScheme
from offramp.wording import did_you_mean

BY_EXIT, BY_CLASS = "exit", "class"


@dataclass(frozen=True)
class Guarantee:
    """A risk of at most epsilon, with probability at least 1 - delta.

    The probability is over the draw of the calibration examples. The risk is the mean of a loss over examples from
    the same distribution.

    >>> Guarantee({"missed": 0.02, "false_alarm": 0.05}).risks
    ('missed', 'false_alarm')
    """

    epsilon: float | Mapping[str, float]
    """One bound. Or one for each of several risks, all of which then hold together. Or one for each group, by default
    for each class. A group needs enough calibration examples of its own."""
    delta: float = 0.05
    risk: str = "changed"
    """A loss of `LOSSES`, or several with commas. "changed": the prediction differs from the reference (no labels
    needed). For decisions that are yes or no, "missed" and "false_alarm", as shares of the examples that the
    reference says yes or no to, or with "_of_all" as shares of all. "score": a score moves by more than the
    tolerance. With labels: "accuracy", a correct prediction is lost, so accuracy drops by at most epsilon;
    "accuracy_drop", the same net of correct predictions that are gained, which allows earlier exits. For rankings:
    "overlap", the share of the reference's top k that is missed; "ndcg", 1 - nDCG@k, where the reference's top k
    have the gains k, ..., 1."""
    tolerance: float | None = None
    """Numbers no further apart than this count as equal: those of a regression, and for "score" probabilities."""
    top_k: int | None = None
    """For rankings: how many documents count, by default 10."""
    by: str = ""
    """Groups, within each of which the bounds hold: "exit", "class", or the name of the trace's categories, such as
    "language". A class is that of the reference's prediction, or for accuracy the correct one."""

    def __post_init__(self) -> None:
        require(are_fractions(self.epsilon), f"epsilon={self.epsilon}: expected a fraction between 0 and 1")
        require(0 < self.delta < 1, f"delta={self.delta}: expected a probability between 0 and 1")
        if isinstance(self.epsilon, Mapping):
            if self.epsilon.keys() <= LOSSES.keys():
                object.__setattr__(self, "risk", ",".join(self.epsilon))
            elif not self.by:
                object.__setattr__(self, "by", BY_CLASS)
        unknown = [risk for risk in self.risks if risk not in LOSSES]
        require(not unknown, f"risk={self.risk!r}: choose one of {', '.join(LOSSES)}")
        require(len({*self.risks}) == len(self.risks), f"risk={self.risk!r} names a risk twice")
        if self.has_group_bounds:
            require(self.by != BY_EXIT, "by='exit' takes one bound for all exits")
            require(len(self.risks) == 1, "bounds that differ by group are for one risk at a time")
        near = self.tolerance is None or 0 <= self.tolerance < float("inf")
        require(near, f"tolerance={self.tolerance}: expected a distance of 0 or more")
        units = {loss.unit for loss in self.losses.values()}
        require(len(units) == 1, f"risk={self.risk!r}: these risks are not about the same things")
        if self.unit == "query":
            object.__setattr__(self, "top_k", 10 if self.top_k is None else self.top_k)
        else:
            require(self.top_k is None, "top_k is for rankings only; leave it out")
        require(self.top_k is None or self.top_k >= 1, f"top_k={self.top_k}: expected 1 or more")
        require(not self.by or self.unit == "example", f"by={self.by!r} is for single texts; leave it out")

    @property
    def risks(self) -> tuple[str, ...]:
        return tuple(self.risk.split(","))

    @property
    def losses(self) -> dict[str, Loss]:
        """By risk."""
        return {risk: LOSSES[risk] for risk in self.risks}

    @property
    def unit(self) -> str:
        """What is counted: an example, a text whose words are tagged, or a query."""
        return LOSSES[self.risks[0]].unit

    @property
    def needs_labels(self) -> bool:
        return any(loss.needs_labels for loss in self.losses.values())

    @property
    def has_group_bounds(self) -> bool:
        """Whether each group has a bound of its own."""
        return isinstance(self.epsilon, Mapping) and tuple(self.epsilon) != self.risks

    def bounds_of(self, risk: str, groups: Iterable[str]) -> dict[str, float]:
        """The bound on a risk in each group."""
        if self.has_group_bounds:
            return {group: dict(self.epsilon)[group] for group in groups}  # type: ignore[arg-type]
        bound = self.epsilon[risk] if isinstance(self.epsilon, Mapping) else self.epsilon
        return dict.fromkeys(groups, bound)

    def bounds_by_group(self, risk: str) -> dict[str, float]:
        """The bound on a risk, by group where groups have bounds of their own."""
        return self.bounds_of(risk, self.epsilon if self.has_group_bounds else [""])  # type: ignore[arg-type]

    def with_risks(self, names: Mapping[str, str]) -> Self:
        """The guarantee with other names of its risks."""
        risks = [names.get(risk, risk) for risk in self.risks]
        epsilon = self.epsilon
        if isinstance(epsilon, Mapping) and not self.has_group_bounds:
            epsilon = dict(zip(risks, epsilon.values(), strict=True))
        return replace(self, risk=",".join(risks), epsilon=epsilon)

    def with_group_names(self, names: Sequence[str]) -> Self:
        """The guarantee; if groups have bounds of their own, with one for each of all groups. They may be given by
        index where none has that name.

        >>> Guarantee({"spam": 0.1, "0": 0.2}).with_group_names(["ham", "spam"]).epsilon
        {'spam': 0.1, 'ham': 0.2}
        """
        if not self.has_group_bounds:
            return self
        assert isinstance(self.epsilon, Mapping)
        bounds: dict[str, float] = {}
        for name, bound in self.epsilon.items():
            index = names.index(name) if name in names else int(name) if name.isdecimal() else len(names)
            if index >= len(names):
                mistyped = [other for other in self.epsilon if other not in LOSSES] if name in LOSSES else []
                of_risk = f"risk {did_you_mean(mistyped[0], LOSSES)}" if mistyped else ""
                raise UnknownName(f"unknown {of_risk or f'{self.by} {did_you_mean(name, names)}'}")
            if names[index] in bounds:
                raise UnknownName(f"{name!r} names the {self.by} {names[index]!r} twice; leave one out.")
            bounds[names[index]] = bound
        unbounded = [name for name in names if name not in bounds]
        require(not unbounded, f"no bound for {', '.join(unbounded)}; give one for every {self.by}")
        return replace(self, epsilon=bounds)

    def for_problem(self, problem: Problem) -> Self:
        """The guarantee with the losses that its risks mean for this problem; an error if it does not apply."""
        if problem.of_tokens:
            for risk in self.risks:
                applies = risk in OF_TAGS or risk in OF_TAGS.values()
                require(applies, f"risk={risk!r} is not for taggers; choose one of {', '.join(OF_TAGS)}")
            require(not self.by, "bounds by group are for single texts; give one bound for a tagger")
            require(
                self.tolerance is None, "a tolerance is for numbers, and the model tags tokens; leave it out"
            )
            return self.with_risks(OF_TAGS)
        for risk, loss in self.losses.items():
            require(loss.unit != "text", f"risk={risk!r} is for taggers; choose one of {', '.join(RISKS)}")
            require(
                problem.multi_label or not loss.yes_or_no,
                f"risk={risk!r} is about yes and no; pass decide=..., such as 'spam>=0.5' or 'spam'",
            )
        if self.unit == "query":
            return self
        require(
            problem.has_classes or self.tolerance is not None,
            "the model predicts numbers: set tolerance=..., within which two count as equal, or decide='score>=...'",
        )
        moves = "score" in self.risks
        require(
            not moves or self.tolerance is not None,
            "risk='score' needs tolerance=..., by which a score may move",
        )
        require(
            moves or not problem.has_classes or self.tolerance is None,
            "a tolerance is for numbers and for risk='score'; leave it out",
        )
        return self.with_risks({"accuracy": "label_accuracy"}) if problem.multi_label else self

    def check_tags(self, scheme: TagScheme) -> None:
        """An error if the words of these tags cannot be missed: a bound on that would be true of any tags."""
        require(
            bool(scheme.outside.any()) or self.risks == ("changed_spans",),
            f"none of the tags ({', '.join(scheme.labels)}) is O, so every word is in a span and none can be missed; "
            "name the model's labels in config.json, or bound risk='changed'",
        )


def require(holds: bool, message: str) -> None:
    if not holds:
        raise BadOption(message)


def are_fractions(epsilon: float | Mapping[str, float]) -> bool:
    bounds = epsilon.values() if isinstance(epsilon, Mapping) else [epsilon]
    return bool(bounds) and all(0 < bound < 1 for bound in bounds)
