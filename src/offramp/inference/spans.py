"""Spans: the parts of a text that a tagger names, decoded from the tags of its words.

Words and spans are those of transformers' `TokenClassificationPipeline` with `aggregation_strategy="first"`: a word
has the tag and the score of its first sub-word, and a span the mean score of its words. The pipeline does not know
BILOU; tags of that scheme are decoded here by its own rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp.numerics import Array, softmax
from offramp.tags import TagScheme


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
