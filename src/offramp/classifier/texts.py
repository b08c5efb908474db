"""What people hand over -> texts, and texts -> tokens."""

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from offramp.errors import BadData, Incompatible
from offramp.stages import Tokens

Text = str | tuple[str, str]
"""One text, or a pair."""


def is_one(given: Any) -> bool:
    """Whether this is one text or one pair, and not several. A list is always several."""
    return isinstance(given, str) or (isinstance(given, tuple) and is_pair(given))


def is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(part, str) for part in item)


def checked(given: Any) -> Iterator[Text]:
    """Several items as texts or as pairs; the first that is neither, or unlike those before, is a `BadData`."""
    if (
        not isinstance(given, Iterable)
        or isinstance(given, Mapping | bytes)
        or getattr(given, "ndim", 1) != 1
    ):
        raise BadData(f"{describe(given)} is neither a text nor a list of them; give one column of texts.")
    return check_items(given)


def check_items(items: Iterable[Any]) -> Iterator[Text]:
    kind = None
    for index, item in enumerate(items):
        if isinstance(item, str):
            text: Text = clean(item)
        elif is_pair(item):
            text = clean(item[0]), clean(item[1])
        else:
            raise BadData(f"item {index} is {describe(item)}; give a text, or a pair of texts.")
        if kind not in (None, type(text)):
            raise BadData(f"item {index} mixes single texts and pairs; give all of one kind.")
        kind = type(text)
        yield text


def describe(thing: Any) -> str:
    return f"{type(thing).__name__} {reprlib.repr(thing)}"


def clean(text: str) -> str:
    """Valid Unicode, which tokenizers ask for: a lone half of a surrogate pair becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def chunks(texts: Iterable[Text], size: int) -> Iterator[list[Text]]:
    """Lists of up to `size` texts. An error while reading comes after the texts that came before it."""
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
    """Many texts at once through a Rust tokenizer, cut at the model's length and not padded."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        rust = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(rust, Tokenizer):
            raise Incompatible(
                f"{type(tokenizer).__name__} has no Rust tokenizer behind it; load the model's tokenizer with "
                "transformers.AutoTokenizer, or tokenizers.Tokenizer.from_file('tokenizer.json')."
            )
        self.rust = Tokenizer.from_str(rust.to_str())  # a copy, as settings of the caller's would change
        self.rust.no_padding()
        self.max_length = min(max_length, getattr(tokenizer, "model_max_length", max_length))
        self.side = getattr(tokenizer, "truncation_side", "right")
        self.rust.enable_truncation(self.max_length, direction=self.side)
        self.tells_types = "token_type_ids" in getattr(tokenizer, "model_input_names", ["token_type_ids"])
        self.blank = getattr(tokenizer, "pad_token_id", None) or 0

    def settings(self) -> dict[str, Any]:
        """What `SavedTokenizer` needs besides tokenizer.json."""
        return {
            "model_max_length": self.max_length,
            "truncation_side": self.side,
            "model_input_names": ["input_ids", *(["token_type_ids"] if self.tells_types else [])],
            "pad_token_id": self.blank,
        }

    def __call__(self, texts: Sequence[Text], whole: bool = False) -> list[Tokens]:
        """Tokens of each text; with `whole`, one that would be cut is a `BadData`."""
        encodings = self.rust.encode_batch_fast(texts)
        for index, encoding in enumerate(encodings if whole else ()):
            if encoding.overflowing:
                raise BadData(
                    f"item {index} is longer than the {self.max_length} tokens that are read here; "
                    "shorten it, or let it be cut."
                )
        # a tokenizer without special tokens makes nothing of an empty text
        return [
            Tokens(encoding.ids or [self.blank], (encoding.type_ids or [0]) if self.tells_types else None)
            for encoding in encodings
        ]
