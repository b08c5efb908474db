"""The cost of early exits: layers and multiply-accumulates per example, and a projection to many texts.

The older systems report three different figures as a saving or a speed-up. Here each has one name:
`executed_fraction` (DeeBERT's "expected saving", ELBERT's "computation cost"), `saved_fraction` (PABEE's
"speed up") and `layer_ratio` (ElasticBERT's "speed up").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offramp.errors import BadOption

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Cost:
    """The mean cost of an example."""

    mean_layer: float
    depth: int
    """Layers of the whole model."""
    macs: float | None = None

    @property
    def executed_fraction(self) -> float:
        return self.mean_layer / self.depth

    @property
    def saved_fraction(self) -> float:
        return 1 - self.executed_fraction

    @property
    def layer_ratio(self) -> float:
        return self.depth / self.mean_layer

    @property
    def flops(self) -> float | None:
        return None if self.macs is None else 2 * self.macs


def cost(histogram: ArrayLike, layers: Sequence[int], depth: int, macs: float | None = None) -> Cost:
    """The cost when histogram[e] examples leave at exit e, which follows layer layers[e].

    *Shapes*: histogram (exits,), layers (exits,).

    *Example*
    >>> half = cost([1, 0, 1], layers=[2, 4, 6], depth=6)
    >>> half.mean_layer, round(half.executed_fraction, 3), half.layer_ratio
    (4.0, 0.667, 1.5)
    """
    counts = np.asarray(histogram, np.float64)
    if counts.shape != (len(layers),) or counts.sum() <= 0:
        raise BadOption(f"the histogram must count at least one example over {len(layers)} exits")
    return Cost(float(counts @ np.asarray(layers) / counts.sum()), depth, macs)


@dataclass(frozen=True)
class Measured:
    """A timed run over some texts."""

    seconds: float
    cores: int
    """Cores reserved for the run, busy or not."""
    texts: int
    mean_layer: float
    mean_tokens: float

    @property
    def per_layer_and_token(self) -> float:
        """Core-seconds for one token in one layer, with the time spent outside the layers spread over them."""
        return self.seconds * self.cores / (self.texts * self.mean_layer * self.mean_tokens)


@dataclass(frozen=True)
class Projection:
    """The resources that many texts would take."""

    core_hours: float
    machines: int
    money: float


def project(
    measured: Measured,
    texts: float,
    *,
    mean_tokens: float,
    hours: float,
    cores_per_machine: int,
    price_per_core_hour: float,
) -> Projection:
    """Core-hours for this many texts, the machines needed to finish within `hours`, and the price.

    Assumes that these texts leave at the same layers as those measured, that time is proportional to tokens and
    layers, that every core is as fast as those measured and always busy, and that only busy cores are paid for.

    *Example*
    >>> seen = Measured(seconds=9, cores=2, texts=1000, mean_layer=4, mean_tokens=25)
    >>> found = project(seen, 1e6, mean_tokens=50, hours=1, cores_per_machine=4, price_per_core_hour=0.25)
    >>> round(found.core_hours, 6), found.machines, round(found.money, 6)
    (10.0, 3, 2.5)
    """
    needed = {
        "texts": texts,
        "mean_tokens": mean_tokens,
        "hours": hours,
        "cores_per_machine": cores_per_machine,
        "measured seconds": measured.seconds,
    }
    for name, value in needed.items():
        if not 0 < value < math.inf:
            raise BadOption(f"{name}={value:g} must be a finite number above 0")
    core_hours = measured.per_layer_and_token * measured.mean_layer * mean_tokens * texts / 3600
    # rounded first, so that float noise does not add a machine
    machines = math.ceil(round(core_hours / (hours * cores_per_machine), 9))
    return Projection(core_hours, machines, core_hours * price_per_core_hour)


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder layer and of an exit's head, from which MACs are counted."""

    hidden: int
    intermediate: int
    heads: int
    pooler: bool = True
    """Whether the head has a pooler before its classifier, its own or a shared one."""


def macs(shape: Shape, classes: int, length: ArrayLike, layers: int, heads: int = 1) -> Array:
    """Multiply-accumulates up to a prediction, as ElasticBERT counts them; FLOPs are twice as many.

    *Reference*: Liu et al. 2022, arXiv:2110.07038, `FLOPs/flops_counter.py`. Per layer of length L, width H,
    inner width I, A heads of width d: 3LHH + A(2LL + 2LLd) + LHH + 2LH + 2LHI + 2LH; once 2LH for the norm of
    the embeddings; per exit HH for a pooler of one token and HC for the classifier. Biases, activations,
    residual sums and lookups count nothing.

    *Relation*: the original counts one head; here an example pays for each of the `heads` that it evaluates.

    *Shapes*: length and the result, (examples,) or a scalar: real lengths, or the length padded to.

    *Example*
    >>> int(macs(Shape(hidden=8, intermediate=16, heads=2), classes=2, length=5, layers=2))
    6600
    """
    tokens, width = np.asarray(length, np.int64), shape.hidden
    attention = 4 * tokens * width**2 + 2 * tokens**2 * (shape.heads + width)  # A * 2LLd is 2LLH
    layer = attention + 2 * tokens * width * shape.intermediate + 4 * tokens * width
    head = shape.pooler * width**2 + width * classes
    return np.asarray(2 * tokens * width + layers * layer + heads * head)
