"""Tagged words: which tokens they consist of, and how their tags divide a text into spans."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offramp.numerics import Array
from offramp.problems import UNLABELLED

SPECIAL, BEGINS, CONTINUES = range(3)
"""What a token of the vocabulary is: no part of the text, the beginning of a word, or the rest of one."""
SPACES = ("\u0120", "\u2581")
"""How byte-level and SentencePiece vocabularies write the space before a word: Ġ and ▁."""

OUTSIDE = "O"
"""The tag of words that are in no span."""
BILOU = ({"B-", "I-", "L-", "U-"}, {"B-", "I-", "E-", "S-"})
"""The prefixes of the scheme, in both of its spellings."""


class TagScheme:
    """How tags divide words into spans.

    A tag is `O`, or a name with a prefix, or a plain name. `B-` begins a span. `I-` and plain tags continue the span
    before them if it has the same name, and begin one otherwise: the same rule reads BIO, IOB1 and plain tags.
    If all tags but O have one of the prefixes of BILOU (`B I L U`, or `B I E S` as in BIOES), then a span also ends
    after `L-` and `E-`, and `U-` and `S-` are spans of a single word.

    >>> scheme = TagScheme(["O", "B-PER", "I-PER"])
    >>> scheme.groups(np.array([1, 2, 1, 0, 2])).tolist()
    [[0, 2], [2, 3], [4, 5]]
    """

    def __init__(self, tags: Sequence[str]) -> None:
        starts = {tag[:2] for tag in tags if tag != OUTSIDE}
        scheme = next((prefixes for prefixes in BILOU if starts <= prefixes), {"B-", "I-"})
        prefixes = [tag[:2] if tag[:2] in scheme else "" for tag in tags]
        names = [tag.removeprefix(prefix) for tag, prefix in zip(tags, prefixes, strict=True)]
        self.labels = [tag.split("-", 1)[-1] for tag in tags]
        """The label of a span that begins with each tag; the pipeline's, which shortens plain tags with a hyphen."""
        self.names = np.array([names.index(name) for name in names], np.int64)  # one number for each name
        self.begins = np.array([prefix in ("B-", "U-", "S-") for prefix in prefixes])
        self.ends = np.array([prefix in ("L-", "E-", "U-", "S-") for prefix in prefixes])
        self.outside = np.array([label == OUTSIDE for label in self.labels])

    def groups(self, tags: Array, begins_text: Array | None = None) -> Array:
        """(spans, 2): the first word of each span, and the one after its last; `tags` (words,) are indices.

        The words are those of one text; or of several in order, and `begins_text` (words,) is true for the first.
        """
        names = self.names[tags]
        starts = np.ones(len(tags), bool)
        starts[1:] = (names[1:] != names[:-1]) | self.begins[tags[1:]] | self.ends[tags[:-1]]
        if begins_text is not None:
            starts |= begins_text
        first = np.flatnonzero(starts)
        last = np.append(first[1:], len(tags))[: len(first)]
        inside = ~self.outside[tags[first]]
        return np.stack([first[inside], last[inside]], axis=1)

    def spans(self, tags: Array, begins_text: Array) -> Array:
        """(spans, 3): as `groups`, and the number of each span's name. Rows are the same where spans are."""
        groups = self.groups(tags, begins_text)
        return np.column_stack([groups, self.names[tags[groups[:, 0]]]])

    def codes(self, tags: Array, begins_text: Array, after_seam: Array) -> Array:
        """(words, ...) the same numbers where spans are the same: 0 outside of all spans, otherwise the name and
        whether the span begins here.

        `tags` (words, ...) are those of all texts in order. A word begins a text (words,), or it is the first of a
        window of one, after a seam (words,), on the other side of which other tags may be taken. What the tags of
        both sides make of the seam is then part of the number.

        >>> scheme = TagScheme(["O", "B-PER", "I-PER"])
        >>> begins_text, after_seam = np.array([True, False, True]), np.zeros(3, bool)
        >>> scheme.codes(np.array([1, 2, 0]), begins_text, after_seam).tolist()
        [7, 5, 0]
        >>> scheme.codes(np.array([2, 2, 0]), begins_text, after_seam).tolist()
        [7, 5, 0]
        """
        names, begins, ends = self.names[tags], self.begins[tags], self.ends[tags]
        joined = (names[1:] == names[:-1]) & ~ends[:-1]
        shape = (-1, *[1] * (tags.ndim - 1))
        first, seam = begins_text.reshape(shape), after_seam.reshape(shape)
        begins |= first
        begins[1:] |= ~joined & ~seam[1:]
        before_seam = np.append(after_seam[1:], np.zeros(len(after_seam[:1]), bool)).reshape(shape)
        codes: Array = np.where(self.outside[tags], 0, 1 + 4 * names + 2 * begins + (ends & before_seam))
        return codes


def begin_texts(texts: Array) -> Array:
    """(words,) which of them begin a text; `texts` (words,) has the number of each word's text, in order.

    >>> begin_texts(np.array([0, 0, 2])).tolist()
    [True, False, True]
    """
    return np.append(True, texts[1:] != texts[:-1])[: len(texts)]


def are_among(spans: Array, others: Array) -> Array:
    """(spans,) which rows of a table of `TagScheme.spans` are also in another one of the same words."""
    base = 1 + max(int(rows.max(initial=0)) for rows in (spans, others))
    first, second = (rows @ [1, base, base**2] for rows in (spans, others))
    return np.isin(first, second)


def find_subwords(text: str, encoding: Any, has_prefix: bool, unknown: int | None) -> Array:
    """(tokens,) whether each token of an encoding (of `tokenizers`) is a sub-word, as transformers' pipeline decides.

    If the tokenizer marks sub-words by a prefix, such as ##, a token that is not spelled as in the text is one;
    otherwise, a token that no space precedes. An unknown token is never one.
    """
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    starts, ends = offsets[:, 0], offsets[:, 1]
    if has_prefix:
        is_subword = np.array([len(token) for token in encoding.tokens], np.int64) != ends - starts
    else:
        near = [text[start - 1 : start + 1] for start in starts.tolist()]
        is_subword = (starts > 0) & ~np.array([" " in characters for characters in near], bool)
    return np.asarray(is_subword & np.array([token != unknown for token in encoding.ids], bool))


def marks_subwords(tokenizer: Any) -> bool:
    """Whether a tokenizer (of `tokenizers`) marks sub-words by a prefix."""
    return bool(getattr(tokenizer.model, "continuing_subword_prefix", None))


def token_kinds(tokenizer: Any, unknown: int | None) -> Array:
    """(vocabulary,) what each token of a tokenizer (of `tokenizers`) is: SPECIAL, BEGINS or CONTINUES.

    This is as far as can be told without the text: `find_subwords` also counts a token as the rest of a word if the
    text spells it otherwise.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    marks_spaces = not prefix and any(token.startswith(SPACES) for token in vocabulary)
    kinds = np.full(1 + max(vocabulary.values()), BEGINS)
    for token, number in vocabulary.items():
        if (prefix and token.startswith(prefix)) or (marks_spaces and not token.startswith(SPACES)):
            kinds[number] = CONTINUES
    special = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    kinds[[*special, *tokenizer.encode("").ids]] = SPECIAL
    if unknown is not None:
        kinds[unknown] = BEGINS
    return kinds


def token_tags(offsets: Array, words: Sequence[str], tags: Sequence[int], continued: bool) -> Array:
    """The tag of each word, at the first token that ends in it; no tag at other tokens, such as special ones.

    `offsets` (tokens, 2) are into the words with a space between them; `continued` if other tokens come before.

    >>> token_tags(np.array([[0, 0], [0, 2], [2, 4], [5, 6], [0, 0]]), ["Anna", "x"], [3, 0], False)
    array([-100,    3, -100,    0, -100])
    """
    lengths = np.array([len(word) for word in words])
    ends = np.cumsum(lengths + 1) - 1
    last = offsets[:, 1] - 1
    word = np.searchsorted(ends, last, side="right")
    inside = np.flatnonzero((offsets[:, 0] < offsets[:, 1]) & (last >= (ends - lengths)[word]))
    tagged, first = np.unique(word[inside], return_index=True)
    if continued and len(inside) and offsets[inside[0], 0] > (ends - lengths)[tagged[0]]:
        tagged, first = tagged[1:], first[1:]  # a word whose first token is in the row before
    labels = np.full(len(offsets), UNLABELLED)
    labels[inside[first]] = np.array(tags)[tagged]
    return labels
