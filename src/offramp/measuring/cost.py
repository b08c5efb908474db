"""The cost of early exits: layers and multiply-accumulates (MACs) per example.

The older systems report three different figures as a saving or a speed-up. Here each has one name:
`executed_fraction` (DeeBERT's "expected saving", ELBERT's "computation cost"), `saved_fraction` (PABEE's
"speed up") and `layer_ratio` (ElasticBERT's "speed up").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from offramp.errors import BadOption
from offramp.problems import Array


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
        """Infinite if every example exits before the first layer; `macs` counts what that costs."""
        return self.depth / self.mean_layer if self.mean_layer else float("inf")

    @property
    def flops(self) -> float | None:
        return None if self.macs is None else 2 * self.macs


def cost(histogram: ArrayLike, layers: Sequence[int], macs: float | None = None) -> Cost:
    """The cost when histogram[e] examples take exit e, which follows layer layers[e]; the last exit is at full depth.

    *Shapes*: histogram (exits,), layers (exits,).

    *Example*
    >>> half = cost([1, 0, 1], layers=[2, 4, 6])
    >>> half.mean_layer, round(half.executed_fraction, 3), half.layer_ratio
    (4.0, 0.667, 1.5)
    """
    counts = np.asarray(histogram, np.float64)
    if counts.shape != (len(layers),) or counts.sum() <= 0:
        raise BadOption(f"the histogram must count at least one example over {len(layers)} exits")
    return Cost(float(counts @ np.asarray(layers) / counts.sum()), layers[-1], macs)


def macs(shape: Mapping[str, int], classes: int, length: ArrayLike, layers: int, heads: int = 1) -> Array:
    """Multiply-accumulates up to a prediction, as ElasticBERT counts them; FLOPs are twice as many.

    `shape` has the sizes of a layer (hidden, intermediate, heads), as `pooler` the number of vectors that the pooler
    of a head reads (1 by default, 4 for pairs, 0 without a pooler), and as `head_hidden` and `correction` the widths
    of its hidden layer and of the layer beside its classifier, if it has them.

    *Reference*: Liu et al. 2022, arXiv:2110.07038, `FLOPs/flops_counter.py`. Per layer of length L, width H,
    inner width I, A heads of width d: 3LHH + A(2LL + 2LLd) + LHH + 2LH + 2LHI + 2LH; once 2LH for the norm of
    the embeddings; per exit HH for a pooler of one token and HC for the classifier. Biases, activations,
    residual sums and lookups count nothing.

    *Relation*: the original counts one head; here an example pays for each of the `heads` that it evaluates.

    *Shapes*: length and the result, (examples,) or a scalar: real lengths, or the length padded to.

    *Example*
    >>> int(macs({"hidden": 8, "intermediate": 16, "heads": 2}, classes=2, length=5, layers=2))
    6600
    """
    tokens, width = np.asarray(length, np.int64), shape["hidden"]
    attention = 4 * tokens * width**2 + 2 * tokens**2 * (shape["heads"] + width)  # A * 2LLd is 2LLH
    layer = attention + 2 * tokens * width * shape["intermediate"] + 4 * tokens * width
    inner = shape.get("head_hidden", 0)
    head = shape.get("pooler", 1) * width**2 + width * inner + (inner or width) * classes
    head += shape.get("correction", 0) * (width + classes)
    return np.asarray(2 * tokens * width + layers * layer + heads * head)
