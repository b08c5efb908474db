"""Texts to tokens: every input gives tokens or an error that names it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadData, CannotLoad, Incompatible
from offramp.inference.texts import CHARACTERS_PER_TOKEN, BatchTokenizer, check_texts, chunks, is_single
from offramp.runtimes import Tokens


@pytest.mark.parametrize(
    "bad", [None, 3, 2.5, float("nan"), b"bytes", ("a",), ("a", "b", "c"), ("a", None), {}, ["a", 1]]
)
def test_a_bad_item_is_named_by_index(bad: Any) -> None:
    with pytest.raises(BadData, match="item 2 is"):
        [*check_texts(["fine", "fine", bad])]


@pytest.mark.parametrize("bad", [None, 3, b"bytes", {"text": "a"}, np.array([["a"], ["b"]]), np.array("a")])
def test_values_that_are_not_lists_of_texts_are_refused(bad: Any) -> None:
    with pytest.raises(BadData, match="is not a text or a list"):
        check_texts(bad)


@pytest.mark.parametrize("mixed", [["a", "b", ("a", "b")], [("a", "b"), ["c", "d"], "a"]])
def test_single_texts_and_pairs_do_not_mix(mixed: list[Any]) -> None:
    with pytest.raises(BadData, match="item 2 mixes"):
        [*check_texts(mixed)]


def test_a_tuple_of_two_strings_is_one_pair_and_a_list_is_several_texts() -> None:
    assert is_single("a")
    assert is_single(("a", "b"))
    assert not is_single(["a", "b"])
    assert not is_single(("a", "b", "c"))
    assert [*check_texts([["a", "b"], ("c", "d")])] == [("a", "b"), ("c", "d")]


def test_arrays_of_strings_are_texts() -> None:
    assert [*check_texts(np.array(["a", "b"]))] == ["a", "b"]
    assert [*check_texts(np.array(["a", "b"], dtype=object))] == ["a", "b"]


def test_lone_surrogates_become_replacement_characters_and_pairs_become_their_character() -> None:
    assert [*check_texts(["x\ud800y", "\ud83d\ude00", "é"])] == ["x\ufffdy", "\U0001f600", "é"]


def test_chunks_yield_the_texts_before_an_error() -> None:
    def source() -> Iterator[str]:
        yield from "abcde"
        raise OSError("the disk is gone")

    seen: list[Any] = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(chunks(source(), 3))
    assert seen == [["a", "b", "c"], ["d", "e"]]
    assert [*chunks("abcd", 2)] == [["a", "b"], ["c", "d"]]
    assert [*chunks("", 2)] == []


@pytest.mark.parametrize(
    "text",
    ["", "good film", "unheard words", ("good", "bad film"), "a " * 100, ("a " * 60, "b " * 50), "[SEP] a"],
)
def test_tokens_are_those_of_the_transformers_tokenizer(
    tokenizer: PreTrainedTokenizerFast, text: Any
) -> None:
    pair = (text,) if isinstance(text, str) else text
    expected = tokenizer(*pair, truncation=True, max_length=40)
    found = BatchTokenizer(tokenizer, 40)([text])
    assert found == [Tokens(expected["input_ids"], expected["token_type_ids"])]


def test_a_text_that_would_be_truncated_is_refused_with_whole(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    batch_tokenizer = BatchTokenizer(tokenizer, 40)
    assert len(batch_tokenizer(["a", "b " * 38], whole=True)[1].ids) == 40
    for long in ("b " * 39, ("a " * 20, "b " * 20)):
        with pytest.raises(BadData, match="item 0 is longer than 40 tokens"):
            batch_tokenizer([long], whole=True)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_very_long_text_is_cut_before_it_is_tokenized_and_has_the_same_tokens(
    tokenizer: PreTrainedTokenizerFast, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "truncation_side", side)
    batch, long = BatchTokenizer(tokenizer, 16), "good bad film a b " * 10_000
    assert len(batch.cut(long)) == 16 * CHARACTERS_PER_TOKEN
    assert [len(part) for part in batch.cut((long, "b"))] == [16 * CHARACTERS_PER_TOKEN, 1]
    found = [tokens.ids for tokens in batch([long, "film"])]
    assert found == tokenizer([long, "film"], truncation=True, max_length=16)["input_ids"]
    assert (
        batch([(long, "film")])[0].ids == tokenizer(long, "film", truncation=True, max_length=16)["input_ids"]
    )
    with pytest.raises(BadData, match="16 tokens"):
        batch([" " * 10**5], whole=True)  # few tokens, but too long to tell


def test_types_are_omitted_for_models_without_them(tokenizer: PreTrainedTokenizerFast) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]")
    bare.model_input_names = ["input_ids", "attention_mask"]
    assert BatchTokenizer(bare, 40)(["good"])[0].types is None


def test_the_given_tokenizer_is_not_changed(tokenizer: PreTrainedTokenizerFast) -> None:
    before = tokenizer.backend_tokenizer.to_str()
    BatchTokenizer(tokenizer, 40)(["a " * 100])
    assert tokenizer.backend_tokenizer.to_str() == before


def test_a_tokenizers_object_is_accepted(tokenizer: PreTrainedTokenizerFast) -> None:
    whole = BatchTokenizer(tokenizer, 40)(["good film"])
    assert BatchTokenizer(tokenizer.backend_tokenizer, 40)(["good film"]) == whole


def test_an_empty_text_has_a_token_even_without_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = BatchTokenizer(tokenizer, 40)
    plain.rust.post_processor = None
    assert [len(tokens.ids) for tokens in plain(["", "a b"])] == [1, 2]


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(Incompatible, match="AutoTokenizer"):
        BatchTokenizer(str.split, 40)


def test_a_regular_expression_that_takes_too_long_is_refused_by_name(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    rust = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rust.pre_tokenizer = Split(Regex("^(?:a|a)+$"), "isolated")
    with pytest.raises(CannotLoad, match=r"the tokenizer cannot be used .*Regex"):
        BatchTokenizer(rust, 100)(["a" * 40 + "b"])
