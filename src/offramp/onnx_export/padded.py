"""The tokens of texts inside a graph, where rows are padded: what `Lists` is to rules and policies elsewhere."""

from typing import Any

import numpy as np

from offramp.engine import count_tokens
from offramp.onnx_export.symbolic import Symbol, new

Array = Any
"""A `Symbol`, used like an array of numpy."""


class PaddedTokens:
    """Values of tokens are (rows, tokens), or (rows, 1, tokens), where `Lists` has (tokens of all, ...).

    `mask` (rows, tokens) is false for padding, `kinds` (rows, tokens) what each token is to words.
    """

    sizes, numbers = np.ones(1), np.zeros(1, int)  # before the first exit, one token stands for all

    def __init__(self, mask: Array, kinds: Array | None = None) -> None:
        self.mask = self.counts = mask
        self.length: Array = new(mask.recorder, "Shape", [mask], np.int64, (1,), start=1, end=2)
        if kinds is not None:
            before: Array = new(
                mask.recorder, "Pad", [kinds, np.array([0, 1, 0, -1])], kinds.dtype, kinds.shape
            )
            self.counts = count_tokens(kinds, before, self) & mask

    def least(self, values: Array) -> Array:
        counts = self.counts if values.ndim == 2 else self.counts[:, None]
        return np.where(counts, values, np.inf).min(-1)

    def total(self, values: Array, counted: bool = True) -> Array:
        values = np.where(self.counts if counted else self.mask, values, 0)
        if not np.issubdtype(values.dtype, np.floating):
            return values.sum(-1)
        # ReduceSum adds in an order that depends on padding
        running: Symbol = new(values.recorder, "CumSum", [values, np.array(1)], values.dtype, values.shape)
        return running[:, -1]

    def spread(self, values: Array) -> Array:
        return values[..., None]
