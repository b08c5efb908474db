"""Tags: how the tags of words divide a text into spans."""

from collections.abc import Sequence

import numpy as np

from offramp.numerics import Array

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
        found = {tag[:2] for tag in tags if tag != OUTSIDE}
        known = next((prefixes for prefixes in BILOU if found <= prefixes), {"B-", "I-"})
        prefixes = [tag[:2] if tag[:2] in known else "" for tag in tags]
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
    """(words,) which of them begin a text; `texts` (words,) are the numbers of the texts that they are of, in order.

    >>> begin_texts(np.array([0, 0, 2])).tolist()
    [True, False, True]
    """
    return np.append(True, texts[1:] != texts[:-1])[: len(texts)]


def are_among(spans: Array, others: Array) -> Array:
    """(spans,) which rows of a table of `TagScheme.spans` are also in another one of the same words."""
    base = 1 + max(int(rows.max(initial=0)) for rows in (spans, others))
    first, second = (rows @ [1, base, base**2] for rows in (spans, others))
    return np.isin(first, second)
