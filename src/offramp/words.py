"""Words of a tokenized text: which tokens continue a word that an earlier one has begun."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offramp.numerics import Array
from offramp.problems import UNLABELLED

SPECIAL, BEGINS, CONTINUES = range(3)
"""What a token of the vocabulary is: no part of the text, the beginning of a word, or the rest of one."""
SPACES = ("\u0120", "\u2581")
"""How byte-level and SentencePiece vocabularies write the space before a word: Ġ and ▁."""


def find_subwords(text: str, encoding: Any, has_prefix: bool, unknown: int | None) -> Array:
    """(tokens,) whether each token of an encoding (of `tokenizers`) is a sub-word, as transformers' pipeline decides.

    If the tokenizer marks sub-words by a prefix, such as ##, all tokens are that are not spelled as in the text.
    Otherwise all are that no space precedes. An unknown token is never one.
    """
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    starts, ends = offsets[:, 0], offsets[:, 1]
    if has_prefix:
        is_subword = np.array([len(token) for token in encoding.tokens], np.int64) != ends - starts
    else:
        near = [text[start - 1 : start + 1] for start in starts.tolist()]
        is_subword = (starts > 0) & ~np.array([" " in characters for characters in near], bool)
    known = np.array([token != unknown for token in encoding.ids], bool)
    return np.asarray(is_subword & known)


def marks_subwords(tokenizer: Any) -> bool:
    """Whether a tokenizer (of `tokenizers`) marks sub-words by a prefix."""
    return bool(getattr(tokenizer.model, "continuing_subword_prefix", None))


def token_kinds(tokenizer: Any, unknown: int | None) -> Array:
    """(vocabulary,) what each token of a tokenizer (of `tokenizers`) is to words, as far as can be told without the
    text: `find_subwords` also counts a token as the rest of a word if the text spells it otherwise."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    marks_spaces = not prefix and any(token.startswith(SPACES) for token in vocabulary)
    kinds = np.full(1 + max(vocabulary.values()), BEGINS)
    for token, number in vocabulary.items():
        if (prefix and token.startswith(prefix)) or (marks_spaces and not token.startswith(SPACES)):
            kinds[number] = CONTINUES
    special = [number for number, each in tokenizer.get_added_tokens_decoder().items() if each.special]
    kinds[[*special, *tokenizer.encode("").ids]] = SPECIAL
    if unknown is not None:
        kinds[unknown] = BEGINS
    return kinds


def token_tags(offsets: Array, words: Sequence[str], tags: Sequence[int], continued: bool) -> Array:
    """The tag of each word at the first token that ends in it; none at all others, such as special tokens.

    `offsets` (tokens, 2) are into the words with a space between them; `continued` if other tokens come before.

    >>> token_tags(np.array([[0, 0], [0, 2], [2, 4], [5, 6], [0, 0]]), ["Anna", "x"], [3, 0], False)
    array([-100,    3, -100,    0, -100])
    """
    lengths = np.array([len(word) for word in words])
    ends = np.cumsum(lengths + 1) - 1
    last = offsets[:, 1] - 1
    word = np.searchsorted(ends, last, side="right")
    inside = np.flatnonzero((offsets[:, 0] < offsets[:, 1]) & (last >= (ends - lengths)[word]))
    found, first = np.unique(word[inside], return_index=True)
    if continued and len(inside) and offsets[inside[0], 0] > (ends - lengths)[found[0]]:
        found, first = found[1:], first[1:]  # a word whose first token is in the row before
    labels = np.full(len(offsets), UNLABELLED)
    labels[inside[first]] = np.array(tags)[found]
    return labels
