"""Policy: a rule with its thresholds and limits."""

import json
import reprlib
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import BadPolicy, CertificateMismatch, Incompatible, UnknownName
from offramp.files import digest
from offramp.guarantees.certificate import Certificate
from offramp.lists import Lists
from offramp.policy import text
from offramp.policy.decide import Decider, Decision, Exits, check_rule, replay, tokens_of
from offramp.problems import SINGLE_LABEL, Array, Problem, problem_of
from offramp.rules.base import Rule
from offramp.rules.rank import Rank
from offramp.trace import Trace
from offramp.wording import count, did_you_mean


@dataclass(frozen=True)
class Policy:
    """When to exit. `offramp.policy.text` describes the text form.

    *Example*:

    >>> policy = Policy.parse("entropy:0.3,min_layer=2")
    >>> policy.exits([[[0.0, 4.0], [0.0, 1.0], [0.0, 3.0], [0.0, 4.0]]])
    array([2])
    >>> str(replace(policy, threshold=(0.1, 0.2, 0.3, 0.3)))
    'entropy:0.1/0.2/0.3/0.3,min_layer=2'
    """

    rule: Rule
    threshold: float | tuple[float, ...] = 0.0
    """In the rule's own units (nats, a probability, a number of exits); a tuple has one per exit."""
    min_layer: int | None = None
    """The first layer at which an example may exit."""
    max_layer: int | None = None
    """The layer at which all remaining examples exit."""
    certificate: Certificate | None = None
    """What calibration proved for this policy; part of the JSON form, not of the text."""

    def __post_init__(self) -> None:
        thresholds = tuple(map(float, np.atleast_1d(self.threshold)))
        _check_thresholds(self.rule, thresholds)
        object.__setattr__(self, "threshold", thresholds if len(thresholds) > 1 else thresholds[0])
        if self.min_layer is not None and self.max_layer is not None and self.min_layer > self.max_layer:
            raise BadPolicy(f"min_layer={self.min_layer} is greater than max_layer={self.max_layer}.")

    @classmethod
    def parse(cls, text_form: str) -> Self:
        """The policy that a text form describes; unknown names and options are refused with the closest match."""
        return cls(**text.read(text_form))

    @classmethod
    def resolve(cls, policy: Self | str, stored: Self | None) -> Self:
        """A policy or its text form; if its rule learns, fitted as the stored one."""
        policy = cls.parse(policy) if isinstance(policy, str) else policy
        return policy.with_fit_of(stored)

    def __str__(self) -> str:
        return text.write(self.rule, self.threshold, self._limits)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, certificate included; `from_json` reads it."""
        name = text.rule_name(self.rule)
        if self.rule.needs_labels:
            raise BadPolicy(f"{name} needs the labels of its data set, so it cannot be saved.")
        record = {
            "rule": name,
            "options": asdict(self.rule),  # type: ignore[call-overload]
            "threshold": list(self.threshold) if isinstance(self.threshold, tuple) else self.threshold,
            **self._limits,
            "certificate": None if self.certificate is None else self.certificate.to_json(),
        }
        if self.certificate is not None:
            record["certificate"]["seal"] = _seal(record)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The policy that `to_json` wrote; without its certificate, and with a warning, if anything was changed.

        Unknown fields are refused: a newer version may use them to decide where examples exit.
        """
        try:
            policy = cls._read(**record)
            as_read = cls.parse(str(policy))
        except (BadPolicy, UnknownName):
            raise
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadPolicy(
                f"{reprlib.repr(record)} is not a saved policy ({error}); calibrate again."
            ) from error
        fitted = {name: getattr(policy.rule, name) for name in text.fitted_names(type(policy.rule))}
        as_read = replace(
            as_read,
            rule=replace(as_read.rule, **fitted),  # type: ignore[type-var]
            certificate=policy.certificate,
        )
        if as_read != policy:
            raise BadPolicy(f"{reprlib.repr(record)} has a value of the wrong type: it reads as {as_read}.")
        if policy.rule.takes_threshold and "threshold" not in record:
            raise BadPolicy(f"{reprlib.repr(record)} has no threshold; calibrate again.")
        if policy.certificate is not None and record["certificate"].get("seal") != _seal(record):
            warnings.warn(
                "the certificate was left out: it, or the policy that it was issued for, was changed since. "
                "Calibrate again.",
                CertificateMismatch,
                stacklevel=2,
            )
            return replace(policy, certificate=None)
        return policy

    @classmethod
    def _read(
        cls,
        rule: str = "",
        options: Mapping[str, Any] | None = None,
        certificate: Any = None,
        **rest: Any,
    ) -> Self:
        known = ["options", *(field.name for field in fields(cls))]
        for key in rest.keys() - known:
            raise BadPolicy(f"a saved policy has no field {did_you_mean(key, known)}")
        kind = text.rule_class(rule)
        for key in (options or {}).keys() - {*text.option_names(kind), *text.fitted_names(kind)}:
            raise BadPolicy(f"{rule} has no option {did_you_mean(key, text.option_names(kind))}")
        proof = None if certificate is None else Certificate.from_json(certificate)
        return cls(kind(**options or {}), certificate=proof, **rest)

    def with_fit_of(self, other: Self | None) -> Self:
        """This policy with what the other's rule was fitted to, if it is the same rule and this one is not fitted.

        So "agreement:0.95" works on a model that was calibrated at another threshold. A policy that names
        different options is an error.
        """
        kind = type(self.rule)
        if self.rule.is_fitted or other is None or type(other.rule) is not kind:
            return self
        fitted = {name: getattr(other.rule, name) for name in text.fitted_names(kind)}
        refitted = replace(cast(Any, self.rule), **fitted)
        if self.rule != kind() and refitted != other.rule:
            raise BadPolicy(
                f"{self} has other options than {other}, which the model was calibrated for; omit them."
            )
        return replace(self, rule=other.rule)

    def with_exact_top(self) -> Self:
        """The same policy; under `rank`, documents that may be among the best run to full depth."""
        return replace(self, rule=replace(self.rule, exact_top=True)) if isinstance(self.rule, Rank) else self

    def exits(
        self,
        logits: ArrayLike,
        gates: ArrayLike | None = None,
        layers: Sequence[int] | None = None,
        problem_type: str | None = None,
        lists: Lists | None = None,
    ) -> Array:
        """(examples,) index of the exit that each example takes; arguments as for `decide`."""
        return self.decide(logits, gates, layers, problem_type, lists).exits

    def decide(
        self,
        logits: ArrayLike,
        gates: ArrayLike | None = None,
        layers: Sequence[int] | None = None,
        problem_type: str | None = None,
        lists: Lists | None = None,
    ) -> Decision:
        """The exits taken and logits returned, as the engine would, from logits (examples, exits, classes).

        `gates` are (examples, exits), `layers` the layer of each exit, by default 1, 2, 3 and so on.
        `problem_type` is transformers' name; by default one class means regression, and more mean a choice.
        `lists` says which rows are parts of one example: the tokens of a text, or documents for a rule that compares
        them; by default none are.
        """
        every = Exits(logits, gates, layers)
        problem = problem_of(every.logits.shape[-1], problem_type)
        examples = len(tokens_of(lists).sizes) if problem.of_tokens else len(every.logits)
        return replay(self.begin(examples, every.layers, problem, lists), every)

    def decide_trace(self, trace: Trace, top_k: int | None = None) -> Decision:
        """The decisions about the rows of a trace; `top_k` is for documents, by default that of the rule."""
        lists = Lists.consecutive(trace.sizes, top_k) if trace.has_lists else trace.lists
        return self.decide(trace.logits, trace.gates, trace.layers, trace.problem, lists)

    def begin(
        self,
        examples: int,
        layers: Sequence[int],
        problem: Problem = SINGLE_LABEL,
        lists: Lists | None = None,
    ) -> Decider:
        """A decider for examples before the first exit of a model with exits at these layers."""
        _check_layers(self, layers)
        return Decider(self, tuple(layers), problem, np.ones(examples, bool), lists)

    def check(
        self,
        layers: Sequence[int],
        problem: Problem = SINGLE_LABEL,
        has_gate: bool = False,
        outputs: int = 1,
    ) -> None:
        """Raise `Incompatible` if this policy cannot run on a model with these exits."""
        _check_layers(self, layers)
        if np.all(self.rule.level(self.threshold) > self.rule.highest):
            raise Incompatible(f"{self}: no example reaches this threshold; write never for full depth.")
        check_rule(self.rule, outputs, problem, has_gate)

    def last_layer(self, layers: Sequence[int]) -> int:
        """The layer at which all remaining examples exit."""
        return layers[-1] if self.max_layer is None else self.max_layer

    def skippable_exits(self, layers: Sequence[int], lists: Lists | None = None) -> int:
        """How many of the first exits need not run: no example may exit there, and the rule does not read them.

        >>> Policy.parse("never").skippable_exits([2, 4, 6]), Policy.parse("layer:4").skippable_exits([2, 4, 6])
        (2, 1)
        >>> Policy.parse("entropy:0.3,min_layer=4").skippable_exits([2, 4, 6])
        1
        >>> Policy.parse("patience:1,min_layer=4").skippable_exits([2, 4, 6])  # it counts from the first
        0
        """
        first, last = self.min_layer or 0, self.last_layer(layers)
        if self.rule.reads == "nothing":
            first = last
        elif self.rule.reads == "layer":
            first = max(first, int(np.max(self.threshold)))
        elif isinstance(self.rule, Rank) and not (np.any(self.threshold) and self.rule.may_settle(lists)):
            first = last
        elif type(self.rule).start is not Rule.start:
            first = 0
        return bisect_left(layers, min(first, last))

    @property
    def _limits(self) -> dict[str, int | None]:
        return {limit: getattr(self, limit) for limit in text.LIMITS}


def _seal(record: Mapping[str, Any]) -> str:
    """A hash of a saved policy with its fitted numbers and its certificate, which names the model."""
    certificate = {name: value for name, value in record["certificate"].items() if name != "seal"}
    return digest([json.dumps({**record, "certificate": certificate}, sort_keys=True).encode()])


def _check_thresholds(rule: Rule, thresholds: tuple[float, ...]) -> None:
    if not thresholds or np.isnan(thresholds).any():
        raise BadPolicy(f"{[*thresholds]} is not a threshold; give a number, or one per exit.")
    name = text.rule_name(rule)
    if not rule.takes_threshold and any(thresholds):
        raise BadPolicy(f"{name} takes no threshold; leave it out.")
    if rule.reads == "layer" and len(thresholds) > 1:
        raise BadPolicy(f"{name} takes a single layer, as in layer:6.")
    if rule.counts_exits and not all(value.is_integer() for value in thresholds):
        raise BadPolicy(f"{name} counts exits, so its threshold must be a whole number.")


def _check_layers(policy: Policy, layers: Sequence[int]) -> None:
    if list(layers) != sorted(set(layers)):
        raise Incompatible(f"exit layers must increase, not {', '.join(map(str, layers))}.")
    if isinstance(policy.threshold, tuple) and len(policy.threshold) != len(layers):
        raise Incompatible(
            f"the policy has {count(len(policy.threshold), 'threshold')} for {count(len(layers), 'exit')}; give one "
            "per exit. The last exit counts too; a single threshold is for all exits."
        )
    policy.rule.check(len(layers))
    limits = {"min_layer": policy.min_layer, "max_layer": policy.max_layer}
    if policy.rule.reads == "layer":
        limits["layer"] = int(np.max(policy.threshold))
    for name, layer in limits.items():
        if layer is not None and layer not in layers:
            raise Incompatible(
                f"{name}={layer}: no exit at this layer; exits are at {', '.join(map(str, layers))}."
            )
