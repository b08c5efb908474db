"""The runtime protocol: a model that runs one stage at a time (the layers up to the next exit, with its head).

The engine depends on this protocol and on no framework. Between stages a runtime passes its own `State`: the
hidden states of a micro-batch, the lengths of its rows, and whatever else its layers need. Logits and gates are
numpy arrays.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from offramp.model_info import ModelInfo
from offramp.policy import Policy
from offramp.problems import Array

State = TypeVar("State")


class Tokens(NamedTuple):
    """One example, unpadded."""

    ids: Sequence[int]
    types: Sequence[int] | None = None
    """Which text of a pair each token belongs to (`token_type_ids`), for models that use it."""


class CompiledPolicy(Protocol):
    """A whole model that decides by a policy of its own, in one call for all exits."""

    def runs(self, policy: Policy) -> bool:
        """Whether it decides as this policy does."""
        ...

    def decide(self, tokens: Sequence[Tokens], policy: Policy) -> tuple[Array, Array]:
        """(rows,) the exits that these examples take, and (rows, labels) their logits, or those of their tokens."""
        ...


@runtime_checkable
class Runtime(Protocol[State]):
    """A model cut into stages."""

    info: ModelInfo
    name: str
    """The software and the device, such as "torch 2.13.0, cpu"."""
    precision: str
    """Such as "fp32" or "int8"; thresholds and certificates hold for one precision."""
    max_length: int
    """The most tokens an example may have."""
    batch_tokens: int
    """The most tokens, padding included, in a micro-batch: just enough to keep the hardware busy."""
    overhead: int
    """The cost of one more micro-batch, in tokens of padding."""

    @property
    def compiled(self) -> CompiledPolicy | None:
        """Decides instead of the engine where it can; None if the runtime has only stages."""
        ...

    def embed(self, tokens: Sequence[Tokens]) -> State:
        """A micro-batch with one row per example, before the first layer."""
        ...

    def run(self, exit: int, state: State) -> tuple[State, Array, Array | None]:
        """Run from where the rows are to this exit: logits (rows, labels) in float32, and gates (rows,) or None.

        Where tokens are tagged, both have a row for each token of all rows, in order, without padding.
        Usually that is one stage; if it is several, the heads of the exits in between may be skipped.
        """
        ...

    def keep(self, state: State, rows: Array) -> State:
        """Some of the rows, given by increasing index, with padding trimmed to the longest of them."""
        ...

    def merge(self, states: Sequence[State]) -> State:
        """Several micro-batches at the same exit as one, rows in order."""
        ...

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        ...

    def fingerprint(self) -> str:
        """Identifies the model in traces and certificates; computing it may be slow."""
        ...


def text_length(runtime: Runtime[Any], wanted: int | None) -> int:
    """The number of tokens at which texts are truncated: as wanted, or else as in training."""
    return min(wanted or runtime.info.trained_length or runtime.max_length, runtime.max_length)


def runtime_of(model: Any) -> Runtime[Any]:
    """`model` if it is a runtime already; the stages of an ExitModel in PyTorch otherwise."""
    if isinstance(model, Runtime):
        return model
    from offramp.runtimes.torch import TorchRuntime

    return TorchRuntime(model)


def pad(rows: Sequence[Sequence[int]], value: int) -> Array:
    """(rows, longest) int64, padded with `value` on the right."""
    longest = max(map(len, rows))
    return np.array([[*row, *[value] * (longest - len(row))] for row in rows], np.int64)


def token_types(tokens: Sequence[Tokens]) -> Array:
    """(rows, longest) int64, zeros for examples without types."""
    return pad([example.types or [0] * len(example.ids) for example in tokens], 0)


def attention_mask(lengths: Array) -> Array:
    """(rows, longest) int64: 1 for tokens, 0 for padding."""
    return (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
