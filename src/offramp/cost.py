"""What an operating point costs: layers, multiply-accumulates, measured milliseconds.

The older systems print three different figures as a saving or a speed-up. Here each has one name:
`executed_fraction` (DeeBERT's "expected saving", ELBERT's "computation cost"), `saved_fraction` (PABEE's
"speed up") and `layer_ratio` (ElasticBERT's "speed up").
"""

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
    milliseconds: float | None = None

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


def cost(
    histogram: ArrayLike,
    layers: Sequence[int],
    depth: int,
    macs: float | None = None,
    layer_milliseconds: Sequence[float] | None = None,
) -> Cost:
    """The cost when histogram[e] examples leave at exit e, which stands behind layer layers[e].

    *Shapes*: histogram (exits,), layers (exits,), layer_milliseconds (depth,).

    *Example*
    >>> half = cost([1, 0, 1], layers=[2, 4, 6], depth=6)
    >>> half.mean_layer, round(half.executed_fraction, 3), half.layer_ratio
    (4.0, 0.667, 1.5)
    """
    share = np.asarray(histogram, np.float64)
    if share.shape != (len(layers),) or share.sum() <= 0:
        raise BadOption(f"a histogram of at least one example over {len(layers)} exits is needed")
    share = share / share.sum()
    milliseconds = None
    if layer_milliseconds is not None:
        if len(layer_milliseconds) != depth:
            raise BadOption(f"{len(layer_milliseconds)} milliseconds for {depth} layers; give one for each")
        milliseconds = float(share @ np.cumsum(layer_milliseconds)[np.asarray(layers) - 1])
    return Cost(float(share @ np.asarray(layers)), depth, macs, milliseconds)


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder that decide its arithmetic."""

    hidden: int
    intermediate: int
    heads: int
    layers: int
    pooler: bool = True
    """Whether an exit's head has a pooler, own or shared, before its classifier."""


def macs(shape: Shape, classes: int, length: ArrayLike, layers: int, heads: int = 1) -> Array:
    """Multiply-accumulates until an answer, as ElasticBERT's counter counts them; FLOPs are twice as many.

    *Reference*: Liu et al. 2022, arXiv:2110.07038, `FLOPs/flops_counter.py`. Per layer of length L, width H,
    inner width I, A heads of width d: 3LHH + A(2LL + 2LLd) + LHH + 2LH + 2LHI + 2LH; once 2LH for the norm of
    the embeddings; per exit HH for a pooler of one token and HC for the classifier. Biases, activations,
    residual sums and lookups count nothing.

    *Relation*: the original counts one head. An example that passes `heads` exits on its way pays for each.

    *Shapes*: length, and the result, (examples,) or a number: the real lengths, or the length padded to.

    *Example*
    >>> int(macs(Shape(hidden=8, intermediate=16, heads=2, layers=2), classes=2, length=5, layers=2))
    6600
    """
    tokens, width = np.asarray(length, np.int64), shape.hidden
    attention = 4 * tokens * width**2 + 2 * tokens**2 * (shape.heads + width)  # A * 2LLd is 2LLH
    layer = attention + 2 * tokens * width * shape.intermediate + 4 * tokens * width
    head = shape.pooler * width**2 + width * classes
    return np.asarray(2 * tokens * width + layers * layer + heads * head)


def parameters(shape: Shape, classes: int, vocabulary: int, positions: int, segments: int = 2) -> int:
    """Weights of a BERT of this shape with one head, biases and norms included.

    *Example*
    >>> base = Shape(hidden=768, intermediate=3072, heads=12, layers=12)
    >>> parameters(base, classes=2, vocabulary=30522, positions=512)
    109483778
    """
    width, inner, norm = shape.hidden, shape.intermediate, 2 * shape.hidden
    embeddings = (vocabulary + positions + segments) * width + norm
    attention = 4 * (width + 1) * width + norm
    feed_forward = (width + 1) * inner + (inner + 1) * width + norm
    head = shape.pooler * (width + 1) * width + (width + 1) * classes
    return embeddings + shape.layers * (attention + feed_forward) + head
