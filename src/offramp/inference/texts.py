"""Checks texts and turns them into tokens."""

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from offramp.errors import BadData, Incompatible
from offramp.folder.manifest import usable_tokenizer
from offramp.runtimes import Tokens

Text = str | tuple[str, str]
"""A text or a pair of texts."""
CHARACTERS_PER_TOKEN = 64
"""Only this many characters of a text are tokenized for each token that the model takes. Tokens have about four, so
predictions stay the same except for texts that are mostly white space or unbroken runs of characters."""


SURROGATES = re.compile("[\ud800-\udfff]")


def is_single(texts: Any) -> bool:
    """Whether this is one text or one pair. A list is always several texts."""
    return isinstance(texts, str) or (isinstance(texts, tuple) and is_pair(texts))


def is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(part, str) for part in item)


def check_texts(
    texts: Any, pairs: bool | None = None, mixed: bool = False, keep_length: bool = False
) -> Iterator[Text]:
    """Several texts, or several pairs; with `mixed`, also both. The first other item is a `BadData`.

    `pairs` is whether the model was trained on pairs, if that is known; the other kind is refused. With
    `keep_length`, offsets into the texts stay as they were.
    """
    if isinstance(texts, str):
        raise BadData("expected a list of texts, not a single text; put it into a list.")
    if (
        not isinstance(texts, Iterable)
        or isinstance(texts, Mapping | bytes)
        or getattr(texts, "ndim", 1) != 1
    ):
        raise BadData(f"{describe(texts)} is not a text or a list of texts.")
    return check_items(texts, pairs, mixed, replace_invalid if keep_length else clean)


def check_items(
    items: Iterable[Any], pairs: bool | None, mixed: bool, clean: Callable[[str], str]
) -> Iterator[Text]:
    kind = None
    for index, item in enumerate(items):
        if isinstance(item, str):
            text: Text = clean(item)
        elif is_pair(item):
            text = clean(item[0]), clean(item[1])
        else:
            raise BadData(f"item {index} is {describe(item)}, not a text or a pair of texts.")
        if not mixed and kind not in (None, type(text)):
            raise BadData(f"item {index} mixes texts and pairs; pass only one kind.")
        kind = type(text)
        check_kind(isinstance(text, tuple), pairs, f"item {index}")
        yield text


def check_kind(is_pair: bool, pairs: bool | None, what: str) -> None:
    """Refuse texts for a model that was trained on pairs, and the reverse."""
    if pairs is not None and is_pair != pairs:
        kinds = {True: "a pair of texts", False: "a single text"}
        expected = {True: "pairs (text and text_pair)", False: "single texts"}
        raise BadData(f"{what} is {kinds[is_pair]}, but the model was trained on {expected[pairs]}.")


def describe(value: Any) -> str:
    return f"{type(value).__name__} {reprlib.repr(value)}"


def clean(text: str) -> str:
    """Valid Unicode, which tokenizers require: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def replace_invalid(text: str) -> str:
    """Like `clean`, and as long as before: each surrogate becomes U+FFFD, also one of a pair."""
    return SURROGATES.sub("\ufffd", text)


def chunks(texts: Iterable[Text], size: int) -> Iterator[list[Text]]:
    """Lists of up to `size` texts. If reading fails, the texts read so far are yielded first."""
    chunk: list[Text] = []
    try:
        for text in texts:
            chunk.append(text)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


class BatchTokenizer:
    """Tokenizes many texts at once in Rust, truncated at the model's length and not padded."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        rust = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(rust, Tokenizer):
            raise Incompatible(
                f"{type(tokenizer).__name__} is not a fast tokenizer; load one with transformers.AutoTokenizer or "
                "tokenizers.Tokenizer.from_file('tokenizer.json')."
            )
        self.rust = Tokenizer.from_str(rust.to_str())  # a copy, because its settings change
        self.rust.no_padding()
        with usable_tokenizer("the tokenizer"):
            self.max_length = int(min(max_length, getattr(tokenizer, "model_max_length", max_length)))
            self.side = getattr(tokenizer, "truncation_side", "right")
            self.rust.enable_truncation(self.max_length, direction=self.side)
            self.uses_types = "token_type_ids" in getattr(tokenizer, "model_input_names", ["token_type_ids"])
            self.pad_token = int(getattr(tokenizer, "pad_token_id", None) or 0)
            self.unknown_token: int | None = getattr(tokenizer, "unk_token_id", None)
            self.rust.encode_batch_fast(["a", ("a", "b")])

    def settings(self) -> dict[str, Any]:
        """What `SavedTokenizer` needs besides tokenizer.json."""
        return {
            "model_max_length": self.max_length,
            "truncation_side": self.side,
            "model_input_names": ["input_ids", *(["token_type_ids"] if self.uses_types else [])],
            "pad_token_id": self.pad_token,
            "unk_token_id": self.unknown_token,
        }

    def __call__(self, texts: Sequence[Text], whole: bool = False) -> list[Tokens]:
        """The tokens of each text; with `whole`, a text that would be truncated is a `BadData`."""
        cut = [self.cut(text) for text in texts]
        with usable_tokenizer("the tokenizer"):  # a regular expression may take too long
            encodings = self.rust.encode_batch_fast(cut)
        for index, encoding in enumerate(encodings if whole else ()):
            if encoding.overflowing or cut[index] != texts[index]:
                raise BadData(
                    f"item {index} is longer than {self.max_length} tokens; shorten it, or allow truncation."
                )
        # without special tokens, an empty text has no tokens
        return [
            Tokens(encoding.ids or [self.pad_token], (encoding.type_ids or [0]) if self.uses_types else None)
            for encoding in encodings
        ]

    def cut(self, text: Text) -> Text:
        """Without the characters far beyond the model's length, which would take long to tokenize."""
        if isinstance(text, tuple):
            return self.cut_one(text[0]), self.cut_one(text[1])
        return self.cut_one(text)

    def cut_one(self, text: str) -> str:
        most = CHARACTERS_PER_TOKEN * self.max_length
        return text[-most:] if self.side == "left" else text[:most]
