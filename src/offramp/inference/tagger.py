"""Tagger: texts in, spans out, with every text exiting at its own layer."""

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, TypedDict, Unpack, overload

import numpy as np

from offramp.errors import Incompatible
from offramp.folder import copy_model, push_model
from offramp.inference.classifier import deadline_from_now
from offramp.inference.runner import Runner
from offramp.inference.spans import Span, find_spans, utf16_offsets
from offramp.inference.texts import check_texts, chunks
from offramp.inference.windows import WindowedText, WindowTokenizer
from offramp.numerics import Array, finite_rows
from offramp.policy import Decision, Policy
from offramp.runtimes import Tokens
from offramp.tags import TagScheme


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
        """False if any exit up to this one produced NaN or infinity. If the one taken did, there are no spans."""
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


class Tagger:
    """Finds the spans of texts with a model that tags tokens, and the policy of a runner. Threads may share it.

    Texts of any length are read whole: those beyond the model's positions in overlapping windows, each of which exits
    at its own layer (`offramp.inference.windows`).
    """

    def __init__(self, runner: Runner) -> None:
        info = runner.runtime.info
        if not info.problem.of_tokens:
            raise Incompatible(f"the model is for {info.problem}, and does not tag tokens; use Classifier.")
        self.runner = runner
        self.tokenizer = WindowTokenizer(runner.tokenizer)
        self.scheme = TagScheme(info.labels)
        if not self.scheme.outside.any():
            warnings.warn(
                f"none of the tags ({', '.join(info.labels)}) is O, so every word is in a span; name the model's "
                "labels in config.json.",
                stacklevel=2,
            )

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], policy: Policy | str | None = None, **options: Any
    ) -> Self:
        """Load a model from a folder or the hub; arguments are those of `Runner.from_pretrained`."""
        return cls(Runner.from_pretrained(path, policy, **options))

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
        if policy is not None or max_layer is not None:  # its own is checked already
            policy = runner.resolve_policy(policy or runner.policy, max_layer)
        policy = policy or runner.policy
        if not isinstance(texts, Sized):
            return self.stream(self.check_texts(texts), policy, deadline_ms, utf16)
        deadline, single = deadline_from_now(deadline_ms), isinstance(texts, str)
        found = [
            spans
            for part in chunks(self.check_texts([texts] if single else texts), runner.engine.window)
            for spans in self.tag_texts(part, policy, deadline, utf16)
        ]
        return found[0] if single else found

    def stream(
        self, texts: Iterator[Any], policy: Policy, deadline_ms: float | None, utf16: bool
    ) -> Iterator[Spans]:
        for part in chunks(texts, self.runner.engine.window):
            yield from self.tag_texts(part, policy, deadline_from_now(deadline_ms), utf16)

    def check_texts(self, texts: Any) -> Iterator[Any]:
        """The texts, each as long as it was given; anything else is a `BadData`."""
        return check_texts(texts, pairs=False, keep_length=True)

    def tag_texts(
        self, texts: Sequence[Any], policy: Policy, deadline: float, utf16: bool
    ) -> Iterator[Spans]:
        read = self.tokenizer(texts)
        windows = [window for each in read for window in each.windows]
        tagged = tagged_windows(windows, self.runner.engine.run(windows, policy, deadline))
        first = 0
        for text, each in zip(texts, read, strict=True):
            spans = self.spans_of(text, each, tagged[first : first + len(each.windows)])
            yield spans.in_utf16(text) if utf16 else spans
            first += len(each.windows)

    def spans_of(self, text: str, read: WindowedText, tagged: Sequence[TaggedWindow]) -> Spans:
        """From the outcomes of all windows of a text."""
        layers = self.runner.runtime.info.exits
        layer, finite = layers[max(window.exit for window in tagged)], all(each.finite for each in tagged)
        logits = read.join([window.logits for window in tagged])
        words = len(read.words)
        if not finite_rows(logits).all():
            return Spans([], layer, layers[-1], finite=False, codes=np.zeros(words, np.int64))
        tags = logits[read.words.first].argmax(-1)
        codes = self.scheme.codes(tags, np.arange(words) == 0, np.zeros(words, bool))
        return Spans(find_spans(text, read.words, logits, self.scheme), layer, layers[-1], finite, codes)

    def save_pretrained(self, path: str | PathLike[str]) -> None:
        """Like `Classifier.save_pretrained`."""
        copy_model(self.runner.folder, path)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Like `Classifier.push_to_hub`."""
        return push_model(self.runner.folder, repo_id, **options)


def tagged_windows(windows: Sequence[Tokens], decision: Decision) -> list[TaggedWindow]:
    """The outcome for each window of a decision."""
    ends = np.cumsum([len(window.ids) for window in windows])
    rows = zip(decision.exits, np.split(decision.logits, ends[:-1]), decision.finite, strict=True)
    return [TaggedWindow(int(exit), logits, bool(finite)) for exit, logits, finite in rows]
