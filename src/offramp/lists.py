"""Lists: examples that consist of several rows, such as the documents of a query."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from offramp.problems import Array


@dataclass(frozen=True)
class Lists:
    """Which list each row belongs to.

    *Example*: a list of two and a list of one.
    >>> lists = Lists.consecutive([2, 1])
    >>> lists.padded(np.array([0.5, 0.7, 0.9]))
    array([[ 0.5,  0.7],
           [ 0.9, -inf]])
    """

    sizes: Array
    """(lists,) how many rows each has, at least one."""
    numbers: Array
    """(rows,) the list of each row."""
    columns: Array
    """(rows,) its place in that list."""
    top_k: Array | None = None
    """(lists,) how many of the best rows are asked for; None for as many as the rule was calibrated for."""

    @classmethod
    def consecutive(cls, sizes: Any, top_k: Any = None) -> Self:
        """Rows in the order of their lists; `top_k` is one number for all lists, or one for each."""
        sizes = np.asarray(sizes)
        starts = np.repeat(sizes.cumsum() - sizes, sizes)
        return cls(
            sizes,
            numbers=np.repeat(np.arange(len(sizes)), sizes),
            columns=np.arange(len(starts)) - starts,
            top_k=None if top_k is None else np.broadcast_to(top_k, sizes.shape),
        )

    def __getitem__(self, rows: Any) -> Self:
        """The lists that these rows belong to; a row that is left out still counts in the size."""
        lists, numbers = np.unique(self.numbers[rows], return_inverse=True)
        top_k = None if self.top_k is None else self.top_k[lists]
        return type(self)(self.sizes[lists], numbers, self.columns[rows], top_k)

    def ranks(self, scores: Array) -> Array:
        """(lists, longest) the rank of each row in its list, from 0; of equal scores, the first is better.

        >>> Lists.consecutive([3, 1]).ranks(np.array([0.5, 0.7, 0.5, 0.9]))
        array([[1, 0, 2],
               [0, 1, 2]])
        """
        order = np.argsort(-self.padded(scores), axis=1, kind="stable")
        return np.argsort(order, axis=1, kind="stable")

    def padded(self, values: Array) -> Array:
        """(rows,) as (lists, longest), -infinity where a list has fewer."""
        table = np.full((len(self.sizes), self.sizes.max(initial=0)), -np.inf)
        table[self.numbers, self.columns] = values
        return table
