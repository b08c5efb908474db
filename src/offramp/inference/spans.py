"""Spans: the parts of a text that a tagger names, decoded from the tags of its words.

Words and spans are those of transformers' `TokenClassificationPipeline` with `aggregation_strategy="first"`: a word
has the tag and the score of its first sub-word, and a span the mean score of its words. The pipeline does not know
BILOU; tags of that scheme are decoded here by its own rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp.numerics import Array, softmax

OUTSIDE = "O"
"""The tag of words that are in no span."""
BILOU = ({"B-", "I-", "L-", "U-"}, {"B-", "I-", "E-", "S-"})
"""The prefixes of the scheme, in both of its spellings."""


@dataclass(frozen=True, slots=True)
class Span:
    """A named part of a text: `text[start:end]`."""

    start: int
    end: int
    label: str
    score: float
    """The mean probability of its words' tags."""
    text: str


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

    def groups(self, tags: Array) -> Array:
        """(spans, 2): the first word of each span, and the one after its last; `tags` (words,) are indices."""
        names = self.names[tags]
        starts = np.ones(len(tags), bool)
        starts[1:] = (names[1:] != names[:-1]) | self.begins[tags[1:]] | self.ends[tags[:-1]]
        first = np.flatnonzero(starts)
        last = np.append(first[1:], len(tags))[: len(first)]
        inside = ~self.outside[tags[first]]
        return np.stack([first[inside], last[inside]], axis=1)


def find_spans(text: str, words: Words, logits: Array, scheme: TagScheme) -> list[Span]:
    """The spans of a text, from the logits (tokens, tags) of its tokens."""
    chances = softmax(logits[words.first])
    tags, scores = chances.argmax(-1), chances.max(-1)
    found = []
    for first, after in scheme.groups(tags).tolist():
        start, end = int(words.starts[first]), int(words.ends[after - 1])
        score = float(scores[first:after].mean())
        found.append(Span(start, end, scheme.labels[tags[first]], score, text[start:end]))
    return found


def utf16_offsets(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans with offsets in units of UTF-16, as JavaScript and Java count them.

    >>> utf16_offsets("🙂 Ann", [Span(2, 5, "PER", 0.9, "Ann")])
    [Span(start=3, end=6, label='PER', score=0.9, text='Ann')]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    units = np.concatenate([[0], np.cumsum(1 + (codes > 0xFFFF))]).tolist()
    return [replace(span, start=units[span.start], end=units[span.end]) for span in spans]
