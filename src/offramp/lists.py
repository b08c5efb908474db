"""Lists: examples that consist of several rows, such as the documents of a query or the tokens of a text."""

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
    counts: Array | None = None
    """(rows,) which rows count, such as tokens that begin a word, at least one of each list; None for all."""

    @classmethod
    def consecutive(cls, sizes: Any, top_k: Any = None, counts: Array | None = None) -> Self:
        """Rows in the order of their lists; `top_k` is one number for all lists, or one for each."""
        sizes = np.asarray(sizes)
        starts = np.repeat(sizes.cumsum() - sizes, sizes)
        return cls(
            sizes,
            numbers=np.repeat(np.arange(len(sizes)), sizes),
            columns=np.arange(len(starts)) - starts,
            top_k=None if top_k is None else np.broadcast_to(top_k, sizes.shape),
            counts=counts,
        )

    def __getitem__(self, rows: Any) -> Self:
        """The lists that these rows belong to; a row that is left out still counts in the size."""
        lists, numbers = np.unique(self.numbers[rows], return_inverse=True)
        top_k = None if self.top_k is None else self.top_k[lists]
        counts = None if self.counts is None else self.counts[rows]
        return type(self)(self.sizes[lists], numbers, self.columns[rows], top_k, counts)

    def rows(self, lists: Any) -> Array:
        """The indices of the rows of some lists, given by mask, indices or slice, if rows are consecutive.

        >>> Lists.consecutive([2, 1, 3]).rows([2, 0])
        array([3, 4, 5, 0, 1])
        """
        starts, sizes = self.starts[lists], self.sizes[lists]
        return np.repeat(starts, sizes) + Lists.consecutive(sizes).columns

    @property
    def starts(self) -> Array:
        """(lists,) the first row of each, if rows are consecutive."""
        starts: Array = self.sizes.cumsum() - self.sizes
        return starts

    def least(self, values: Array) -> Array:
        """(lists, ...) the least of the rows that count, if rows are consecutive; `values` are (rows, ...)."""
        if self.counts is not None:
            values = np.where(self.counts.reshape(-1, *[1] * (values.ndim - 1)), values, np.inf)
        least: Array = np.minimum.reduceat(values, self.starts, axis=0) if len(values) else values
        return least

    def total(self, values: Array, counted: bool = True) -> Array:
        """(lists,) the sum of values (rows,) over the rows that count, or over all, if rows are consecutive; a list
        may be empty, unless values are floats.

        >>> Lists.consecutive([2, 0, 1]).total(np.array([1, 2, 3]))
        array([3, 0, 3])
        """
        values = values * self.counts if counted and self.counts is not None else values
        if np.issubdtype(values.dtype, np.floating):  # the sum of a list must not depend on those before it
            return np.asarray(np.add.reduceat(values, self.starts)) if len(values) else values
        sums = np.append(0, np.cumsum(values))
        return np.asarray(sums[self.starts + self.sizes] - sums[self.starts])

    def spread(self, values: Array) -> Array:
        """(rows, ...) for each row the value of its list, from values (lists, ...)."""
        spread: Array = values[self.numbers]
        return spread

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
