"""What executes a model, one stage at a time: the layers up to the next exit, with its head.

The engine knows this protocol and no framework. What travels between stages is the runtime's own `State`: the
hidden states of some rows, their lengths, whatever the layers need besides. Logits and gates are numpy. A
runtime with one graph for the embedding and one for each stage fits: hidden states and a mask go in.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from offramp.policy import Policy

Array = NDArray[Any]
State = TypeVar("State")


class Tokens(NamedTuple):
    """One example, unpadded."""

    ids: Sequence[int]
    types: Sequence[int] | None = None
    """Which text of a pair each token belongs to, for a model that is told."""


@runtime_checkable
class Stages(Protocol[State]):
    """A model cut into stages, and what one must know to run them."""

    layers: tuple[int, ...]
    """The layer of each exit, from 1."""
    labels: tuple[str, ...]
    problem_type: str
    precision: str
    """What it computes in, such as "fp32" or "int8": thresholds and certificates hold for one precision."""
    policy: Policy | None
    """The policy that is stored with the model."""
    max_length: int
    """Tokens that the model can tell the places of."""
    budget: int
    """Tokens, padding included, that a micro-batch should hold at most: enough to keep the hardware busy."""
    overhead: int
    """What one more micro-batch costs, in tokens: more padding than this is not worth saving one."""

    def embed(self, tokens: Sequence[Tokens]) -> State:
        """Examples before the first layer, as rows of one micro-batch."""
        ...

    def run(self, exit: int, state: State) -> tuple[State, Array, Array | None]:
        """From where the rows are to this exit: logits (rows, labels) in float32, and gates (rows,) or None.

        Mostly that is one stage; exits that are left out need not say anything.
        """
        ...

    def keep(self, state: State, rows: Array) -> State:
        """Some rows, by rising index, with the padding trimmed to the longest of them."""
        ...

    def merge(self, states: Sequence[State]) -> State:
        """Several micro-batches at the same exit as one, rows in order."""
        ...

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        ...

    def about(self) -> dict[str, Any]:
        """What a trace tells of the model and of what runs it: fingerprint, runtime, shape."""
        ...


def pad(rows: Sequence[Sequence[int]], value: int) -> Array:
    """(rows, longest) int64, filled up with a value on the right."""
    padded = np.full((len(rows), max(map(len, rows))), value)
    for row, items in zip(padded, rows, strict=True):
        row[: len(items)] = items
    return padded
