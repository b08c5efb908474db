"""A runtime without a model, `FakeRuntime`, and a certificate of no calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from offramp.guarantees.certificate import Certificate, Conditions, ProvenBound
from offramp.model_info import ModelInfo
from offramp.policy import Policy
from offramp.problems import SINGLE_LABEL, Problem
from offramp.runtimes import Tokens


def make_info(
    exits: Sequence[int] = (2, 4, 6, 8),
    labels: Sequence[str] = ("a", "b", "c"),
    problem: Problem = SINGLE_LABEL,
    **fields: Any,
) -> ModelInfo:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    encoder = {"model_type": "bert", "num_hidden_layers": exits[-1], **sizes}
    head = {"gate": False, "pooler": "each", "pooling": "mean", "hidden": 0}
    return ModelInfo(tuple(exits), tuple(labels), problem, head, encoder, policy=None, **fields)


@dataclass
class FakeRuntime:
    """Logits that depend on the example's own tokens only, exactly, so that any leak from neighbours shows."""

    info: ModelInfo = field(default_factory=make_info)
    name: str = "numpy"
    precision: str = "fp32"
    max_length: int = 100
    batch_tokens: int = 64
    overhead: int = 4
    compiled: None = None
    poison: int | None = None
    """A token that makes a run fail."""
    nan: int | None = None
    """A token that makes all logits NaN."""
    batches: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """(exit, lengths of the rows) of every micro-batch that ran."""

    def embed(self, tokens: Sequence[Tokens]) -> list[Tokens]:
        return [*tokens]

    def run(self, exit: int, state: list[Tokens]) -> tuple[list[Tokens], np.ndarray, np.ndarray | None]:
        if any(self.poison in example.ids for example in state):
            raise ZeroDivisionError("poison")
        self.batches.append((exit, np.array([len(example.ids) for example in state])))
        logits, gates = zip(*(self.outputs(example, exit) for example in state), strict=True)
        if self.info.problem.of_tokens:
            return state, np.concatenate(logits), np.concatenate(gates)
        return state, np.stack(logits), None if gates[0] is None else np.array(gates)

    def outputs(self, example: Tokens, exit: int) -> tuple[np.ndarray, Any]:
        """The logits and the gate of one example, or of each of its tokens if those are tagged."""
        draw = np.random.default_rng([*map(int, example.ids), exit])
        if self.info.problem.of_tokens:
            shape = len(example.ids), len(self.info.labels)
            tagged = draw.normal(size=shape).astype(np.float32) * (exit + 1) * 3
            tagged[np.asarray(example.ids) == self.nan] = np.nan
            return tagged, draw.random(shape[0]).astype(np.float32)
        logits = draw.normal(size=len(self.info.labels)).astype(np.float32) * (exit + 1)
        if self.nan in example.ids:
            logits[:] = np.nan
        return logits, np.float32(draw.random())

    def keep(self, state: list[Tokens], rows: np.ndarray) -> list[Tokens]:
        return [state[row] for row in rows]

    def merge(self, states: Sequence[list[Tokens]]) -> list[Tokens]:
        return [example for state in states for example in state]

    def is_finite(self) -> bool:
        return True

    def fingerprint(self) -> str:
        return "fake"


BOUND: dict[str, Any] = {"risk": "changed", "epsilon": 0.1, "examples": 500, "observed_risk": 0.02}
CONDITIONS: dict[str, Any] = {
    "policy": "entropy:0.3",
    "mean_layer": 2.0,
    "fingerprint": "abc",
    "precision": "fp32",
}


def make_certificate(**changes: Any) -> Certificate:
    """A complete certificate, for tests that are about a few of its fields, or of its conditions."""

    def changed(kind: Any, defaults: dict[str, Any]) -> dict[str, Any]:
        names = {each.name for each in fields(kind)}
        return defaults | {name: value for name, value in changes.items() if name in names}

    bound = changed(ProvenBound, BOUND)
    epsilon = bound.pop("epsilon")
    groups = epsilon if isinstance(epsilon, dict) else {bound.pop("group", ""): epsilon}
    claim = {
        "bounds": [ProvenBound(group=group, epsilon=each, **bound) for group, each in groups.items()],
        "by": "class" if isinstance(epsilon, dict) else "",
        "delta": 0.05,
        "examples": bound["examples"],
        "conditions": Conditions(**changed(Conditions, CONDITIONS)),
    }
    return Certificate(**changed(Certificate, claim))


def certified(policy: Policy | str, **changes: Any) -> Policy:
    """A policy with such a certificate of its own."""
    policy = Policy.parse(policy) if isinstance(policy, str) else policy
    return replace(policy, certificate=make_certificate(**{"policy": str(policy), **changes}))
