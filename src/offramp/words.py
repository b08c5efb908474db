"""Words of a tokenized text: which tokens continue a word that an earlier one has begun."""

from typing import Any

import numpy as np

from offramp.numerics import Array


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
