"""Trace: the logits of every exit for every example. (Skeleton: fields and signatures are final.)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Trace:
    logits: Array  # (examples, exits, classes) float32
    layers: tuple[int, ...]  # layer of each exit, from 1
    labels: Array | None  # (examples,) int or float, or (examples, classes) 0/1
    lengths: Array  # (examples,) tokens
    ids: Array  # (examples,)
    gates: Array | None = None  # (examples, exits)
    problem_type: str = "single_label_classification"
    label_names: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # the first is the headline
    fingerprint: str = ""  # of the model
    data: str = ""  # what data it was
    runtime: str = ""
    shape: Mapping[str, int] = field(default_factory=dict)  # hidden, intermediate, heads, layers

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: Any) -> Self:
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        raise NotImplementedError


def collect(
    model: Any,
    dataset: Any,
    tokenizer: Any = None,
    *,
    batch_tokens: int = 16_384,
    max_length: int | None = None,
    metrics: tuple[str, ...] = (),
    data: str = "",
    progress: bool = True,
) -> Trace:
    raise NotImplementedError
