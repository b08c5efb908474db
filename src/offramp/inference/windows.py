"""Texts of any length as windows of tokens, for models that tag every token.

A text that is longer than the model's positions is read in windows of that length, spread evenly, so that each shares
at least a quarter of its tokens with the next. Every token belongs to one window: the overlap is cut in the middle,
so that a token next to the cut has context on both sides. The tags of a text are those of its windows' own tokens,
one after the other. Nothing is truncated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from offramp.errors import BadOption
from offramp.folder.manifest import usable_tokenizer
from offramp.inference.texts import BatchTokenizer, replace_invalid
from offramp.numerics import Array
from offramp.runtimes import Tokens
from offramp.tags import find_subwords, marks_subwords

OVERLAP = 0.25
"""The least share of a window that it has in common with the next."""


@dataclass(frozen=True)
class Words:
    """The words of a text, in order."""

    first: Array
    """(words,) the position of each word's first token among the tokens of the text."""
    starts: Array
    """(words,) offsets in characters, as are the ends."""
    ends: Array

    @classmethod
    def of_tokens(cls, starts: Array, ends: Array, is_subword: Array) -> "Words":
        """Tokens that are no sub-words start words; so does the first token in any case."""
        first = np.flatnonzero(~is_subword | (np.arange(len(starts)) == 0))
        last = np.append(first[1:], len(starts))[: len(first)] - 1
        return cls(first, starts[first], ends[last])

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class WindowedText:
    """A text as the model reads it."""

    windows: list[Tokens]
    inner: list[slice]
    """The tokens of each window that belong to it: neither special tokens nor those of a neighbor."""
    words: Words
    """The positions of first tokens count the tokens that belong to windows."""
    offsets: Array
    """(tokens, 2) where each of these begins and ends, in characters."""

    @property
    def is_first(self) -> Array:
        """(tokens,) which of them begin a word."""
        first = np.zeros(len(self.offsets), bool)
        first[self.words.first] = True
        return first

    def join(self, outputs: Sequence[Array]) -> Array:
        """(tokens, ...) of the text, from (tokens, ...) of each window, special tokens included."""
        return np.concatenate([rows[inner] for rows, inner in zip(outputs, self.inner, strict=True)])

    def spread(self, values: Array, elsewhere: Any) -> list[Array]:
        """(tokens,) of each window, from (tokens,) of the text: what `join` would join."""
        spread, first = [], 0
        for window, inner in zip(self.windows, self.inner, strict=True):
            spread.append(np.full(len(window.ids), elsewhere))
            spread[-1][inner] = values[first : first + inner.stop - inner.start]
            first += inner.stop - inner.start
        return spread


class WindowTokenizer:
    """Tokenizes texts whole, in windows of the length at which another tokenizer truncates them."""

    def __init__(self, base: BatchTokenizer) -> None:
        self.base = base
        self.rust = Tokenizer.from_str(base.rust.to_str())  # a copy, because its settings change
        self.rust.no_truncation()
        self.room = base.max_length - self.rust.num_special_tokens_to_add(is_pair=False)
        if self.room < 1:
            raise BadOption(f"max_length={base.max_length} leaves no room for texts between special tokens.")
        self.has_subwords = marks_subwords(self.rust)

    def __call__(self, texts: Sequence[str]) -> list[WindowedText]:
        cleaned = [*map(replace_invalid, texts)]
        with usable_tokenizer("the tokenizer"):  # a regular expression may take too long
            encodings = self.rust.encode_batch(cleaned)
        return [self.read(text, encoding) for text, encoding in zip(cleaned, encodings, strict=True)]

    def read(self, text: str, encoding: Any) -> WindowedText:
        ids, types = encoding.ids, encoding.type_ids
        inside = np.flatnonzero(np.array(encoding.special_tokens_mask, np.int64) == 0)
        before, after = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (len(ids), len(ids))
        windows, inner = [], []
        for first, last, part in cut_windows(after - before, self.room):
            rows = [*range(before), *range(before + first, before + last), *range(after, len(ids))]
            window_types = [types[row] for row in rows] or [0]
            tokens = [ids[row] for row in rows] or [self.base.pad_token]  # an empty text, no special tokens
            windows.append(Tokens(tokens, window_types if self.base.uses_types else None))
            inner.append(slice(before + part.start - first, before + part.stop - first))
        inside_text = slice(before, after)
        offsets = np.array(encoding.offsets[inside_text], np.int64).reshape(-1, 2)
        is_subword = find_subwords(text, encoding, self.has_subwords, self.base.unknown_token)
        words = Words.of_tokens(offsets[:, 0], offsets[:, 1], is_subword[inside_text])
        return WindowedText(windows, inner, words, offsets)


def cut_windows(tokens: int, room: int) -> list[tuple[int, int, slice]]:
    """The first token of each window, the one after its last, and those that belong to it.

    >>> cut_windows(20, 8)
    [(0, 8, slice(0, 7, None)), (6, 14, slice(7, 13, None)), (12, 20, slice(13, 20, None))]
    """
    if tokens <= room:
        return [(0, tokens, slice(0, tokens))]
    step = max(1, room - int(np.ceil(OVERLAP * room)))
    count = -(-(tokens - room) // step) + 1
    starts = [(tokens - room) * index // (count - 1) for index in range(count)]
    cuts = [0, *((before + room + start) // 2 for before, start in pairwise(starts)), tokens]
    return [(start, start + room, slice(*part)) for start, part in zip(starts, pairwise(cuts), strict=True)]
