"""Tagger: texts in, spans out, with every text exiting at its own layer.

Words and spans are those of transformers' `TokenClassificationPipeline` with `aggregation_strategy="first"`: a word
has the tag and the score of its first sub-word, and a span the mean score of its words. The pipeline does not know
BILOU; tags of that scheme are decoded here by its own rule.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from offramp.errors import Incompatible
from offramp.inference.runner import Pretrained, Runner
from offramp.inference.texts import check_texts
from offramp.inference.windows import WindowedText, WindowTokenizer, Words
from offramp.numerics import Array, finite_rows, softmax
from offramp.policy import Decision, Policy
from offramp.runtimes import Tokens
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


class Spans(list[Span]):
    """The spans of a text, in order, and the layer that they come from."""

    def __init__(
        self, spans: Iterable[Span], layer: int, layers: int, finite: bool = True, codes: Array | None = None
    ) -> None:
        super().__init__(spans)
        self.layer = layer
        """The layer of the exit taken; the deepest one, if the text was read in several windows."""
        self.layers = layers
        """The number of layers in the model."""
        self.finite = finite
        """As in `Prediction`. If the exit taken produced NaN or infinity, there are no spans."""
        self.codes = np.zeros(0, np.int64) if codes is None else codes
        """(words,) numbers that are the same where spans are; see `TagScheme.codes`."""

    def in_utf16(self, text: str) -> "Spans":
        """With offsets in units of UTF-16, as JavaScript and Java count them; `text` is the one they are in."""
        return Spans(utf16_offsets(text, self), self.layer, self.layers, self.finite, self.codes)


@dataclass(frozen=True)
class TaggedWindow:
    """The outcome for one window of a text."""

    exit: int
    logits: Array
    """(tokens, tags)"""
    finite: bool


class TagOptions(TypedDict, total=False):
    """The keyword arguments of `Tagger.tag`."""

    policy: Policy | str | None
    max_layer: int | None
    deadline_ms: float | None
    utf16: bool


class Tagger(Pretrained):
    """Finds the spans of texts with a model that tags tokens, and the policy of a runner. Threads may share it.

    Texts of any length are read whole: those beyond the model's positions in overlapping windows, each of which exits
    at its own layer (`offramp.inference.windows`).
    """

    def __init__(self, runner: Runner) -> None:
        info = runner.runtime.info
        if not info.problem.of_tokens:
            raise Incompatible(f"the model is for {info.problem}, and does not tag tokens; use Classifier.")
        super().__init__(runner)
        self.tokenizer = WindowTokenizer(runner.tokenizer)
        self.scheme = TagScheme(info.labels)
        if not self.scheme.outside.any():
            warnings.warn(
                f"none of the tags ({', '.join(info.labels)}) is O, so every word is in a span; name the model's "
                "labels in config.json.",
                stacklevel=2,
            )

    @overload
    def tag(self, texts: str, **options: Unpack[TagOptions]) -> Spans: ...
    @overload
    def tag(self, texts: Iterator[str], **options: Unpack[TagOptions]) -> Iterator[Spans]: ...
    @overload
    def tag(self, texts: Sequence[Any], **options: Unpack[TagOptions]) -> list[Spans]: ...

    def tag(
        self,
        texts: Any,
        *,
        policy: Policy | str | None = None,
        max_layer: int | None = None,
        deadline_ms: float | None = None,
        utf16: bool = False,
    ) -> Spans | list[Spans] | Iterator[Spans]:
        """The spans of one text, of several, or of a stream of texts, in order. A text without spans has none.

        Args:
            texts: one text, several, or an iterator, as in `Classifier.predict`.
            policy: replaces the tagger's policy for this call, for example "entropy:0.1".
            max_layer: the deepest layer to run; texts that have not exited by then exit there.
            deadline_ms: as in `Classifier.predict`.
            utf16: count offsets in units of UTF-16, as JavaScript and Java do, instead of characters.
        """
        runner = self.runner
        policy = runner.resolve_policy(policy, max_layer)

        def tag(part: Sequence[str], deadline: float) -> Iterator[Spans]:
            return self.tag_texts(part, policy, deadline, utf16)

        single, is_stream = isinstance(texts, str), not isinstance(texts, Sized)
        # offsets of spans are into the texts as they were given
        checked = check_texts([texts] if single else texts, pairs=False, keep_length=True)
        tagged = runner.predict_windows(checked, is_stream, deadline_ms, tag)
        if is_stream:
            return tagged
        return next(tagged) if single else [*tagged]

    def tag_texts(
        self, texts: Sequence[Any], policy: Policy, deadline: float, utf16: bool
    ) -> Iterator[Spans]:
        read = self.tokenizer(texts)
        windows = [window for windowed in read for window in windowed.windows]
        tagged = tagged_windows(windows, self.runner.engine.run(windows, policy, deadline))
        first = 0
        for text, windowed in zip(texts, read, strict=True):
            spans = self.spans_of(text, windowed, tagged[first : first + len(windowed.windows)])
            yield spans.in_utf16(text) if utf16 else spans
            first += len(windowed.windows)

    def spans_of(self, text: str, read: WindowedText, tagged: Sequence[TaggedWindow]) -> Spans:
        """From the outcomes of all windows of a text."""
        layers = self.runner.runtime.info.exits
        layer = layers[max(window.exit for window in tagged)]
        finite = all(window.finite for window in tagged)
        logits = read.join([window.logits for window in tagged])
        words = len(read.words)
        if not finite_rows(logits).all():
            return Spans([], layer, layers[-1], finite=False, codes=np.zeros(words, np.int64))
        tags = logits[read.words.first].argmax(-1)
        codes = self.scheme.codes(tags, np.arange(words) == 0, np.zeros(words, bool))
        return Spans(find_spans(text, read.words, logits, self.scheme), layer, layers[-1], finite, codes)


def tagged_windows(windows: Sequence[Tokens], decision: Decision) -> list[TaggedWindow]:
    """The outcome for each window of a decision."""
    ends = np.cumsum([len(window.ids) for window in windows])
    rows = zip(decision.exits, np.split(decision.logits, ends[:-1]), decision.finite, strict=True)
    return [TaggedWindow(int(exit), logits, bool(finite)) for exit, logits, finite in rows]


def find_spans(text: str, words: Words, logits: Array, scheme: TagScheme) -> list[Span]:
    """The spans of a text, from the logits (tokens, tags) of its tokens."""
    chances = softmax(logits[words.first])
    tags, scores = chances.argmax(-1), chances.max(-1)
    spans = []
    for first, after in scheme.groups(tags).tolist():
        start, end = int(words.starts[first]), int(words.ends[after - 1])
        score = float(scores[first:after].mean())
        spans.append(Span(start, end, scheme.labels[tags[first]], score, text[start:end]))
    return spans


def utf16_offsets(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans with offsets in units of UTF-16, as JavaScript and Java count them.

    >>> utf16_offsets("🙂 Ann", [Span(2, 5, "PER", 0.9, "Ann")])
    [Span(start=3, end=6, label='PER', score=0.9, text='Ann')]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    units = np.concatenate([[0], np.cumsum(1 + (codes > 0xFFFF))]).tolist()
    return [replace(span, start=units[span.start], end=units[span.end]) for span in spans]
