"""Cache: predictions for exact repeats, the latest used first.

A key has all that a prediction depends on: the text or the texts of a list, the policy with what its rule was fitted
to, and the options of the request. Predictions that a deadline may have cut are never stored.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple


class CacheEntry(NamedTuple):
    predictions: Sequence[Any]
    """One for a text, one for each document of a list; as in `Reply`."""
    tokens: int


class Cache:
    """The entries of the latest `most` texts or lists. Threads may share it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: OrderedDict[Hashable, CacheEntry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, keys: Sequence[Hashable]) -> list[CacheEntry] | None:
        """The entries of all these keys; None if one is missing, because a request has one policy for all."""
        with self._lock:
            if not all(key in self._entries for key in keys):
                return None
            for key in keys:
                self._entries.move_to_end(key)
            return [self._entries[key] for key in keys]

    def put(self, key: Hashable, entry: CacheEntry) -> None:
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            while len(self._entries) > self.most:
                self._entries.popitem(last=False)
