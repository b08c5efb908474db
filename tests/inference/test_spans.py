"""Spans are decoded as by transformers' pipeline, from texts of any length."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
    TokenClassificationPipeline,
)

from offramp.errors import BadOption
from offramp.guarantees.losses import LOSSES, Reference
from offramp.inference.tagger import Span, find_spans, utf16_offsets
from offramp.inference.texts import BatchTokenizer
from offramp.inference.windows import WindowTokenizer, Words, cut_windows
from offramp.lists import Lists
from offramp.tags import TagScheme

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
CORPUS = [
    "Ann Lee called Zoë at 555-0100 from Paris, near the café.",
    "Straße, naïve, re\u0301sume\u0301 and unbelievable unbelievers in New York",
    "東京 is the capital; 🙂 means happy, 👩‍👩‍👧 a family",
]
PIECES = [
    *" ".join(CORPUS).split(),
    "\u0301",
    "e\u0301",
    "👩‍👩‍👧",
    "🇫🇷",
    "\u200b",
    "ﬁ",
    "İ",
    "مرحبا",
    "a" * 120,
]
PIECES += [
    "[SEP]",
    "[UNK]",
    "<unk>",
    "##ann",
    "▁x",
    "Ġy",
    "\x00",
    "\x1b",
    "\ufffd",
    "…",
    "--",
    "'s",
    "\u00a0",
]
TEXTS = st.lists(
    st.tuples(st.sampled_from(PIECES) | st.text(max_size=4), st.sampled_from(["", " ", "  ", "\n", "\t"])),
    max_size=25,
).map(lambda parts: "".join(piece + gap for piece, gap in parts).encode("utf-8", "replace").decode())


def wordpiece() -> tuple[Tokenizer, Any, str]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer, "[UNK]"


def byte_level() -> tuple[Tokenizer, Any, str]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer, "<unk>"


def unigram() -> tuple[Tokenizer, Any, str]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer, "<unk>"


def make_tokenizer(
    kind: Callable[[], tuple[Tokenizer, Any, str]], length: int = 4096
) -> PreTrainedTokenizerFast:
    rust, trainer, unknown = kind()
    options: dict[str, Any] = {"vocab_size": 300, "special_tokens": ["<pad>", unknown, "[CLS]", "[SEP]"]}
    if trainer is trainers.UnigramTrainer:
        options["unk_token"] = unknown
    if trainer is trainers.BpeTrainer:
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(CORPUS, trainer(show_progress=False, **options))
    specials = [(token, rust.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    if kind is byte_level:
        rust.post_processor = processors.RobertaProcessing(
            ("[SEP]", specials[1][1]), ("[CLS]", specials[0][1])
        )
    else:
        rust.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        unk_token=unknown,
        pad_token="<pad>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=length,
    )


def make_tagger(tokenizer: PreTrainedTokenizerFast, tags: list[str], seed: int) -> BertForTokenClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=4096,
        initializer_range=0.8,
        id2label=dict(enumerate(tags)),
        label2id={tag: index for index, tag in enumerate(tags)},
    )
    return BertForTokenClassification(config).eval()


def windows_of(tokenizer: Any, length: int) -> WindowTokenizer:
    return WindowTokenizer(BatchTokenizer(tokenizer, length))


@torch.no_grad()
def tag(model: Any, tokenizer: WindowTokenizer, text: str) -> list[Span]:
    """The spans that the plain model finds in a text."""
    [read] = tokenizer([text])
    logits = [model(torch.tensor([list(window.ids)])).logits[0].numpy() for window in read.windows]
    scheme = TagScheme([model.config.id2label[index] for index in range(model.config.num_labels)])
    return find_spans(text, read.words, read.join(logits), scheme)


@pytest.mark.parametrize("tags", [BIO, ["O", "PER", "LOC"], ["O", "I-A", "B-A", "I-B", "x-y", "A"]], ids=str)
@pytest.mark.parametrize("kind", [wordpiece, byte_level, unigram])
def test_spans_are_those_of_transformers_pipeline(kind: Any, tags: list[str]) -> None:
    tokenizer = make_tokenizer(kind)
    taggers = [make_tagger(tokenizer, tags, seed) for seed in range(3)]
    own, seen = windows_of(tokenizer, 4096), 0

    @settings(max_examples=60, deadline=None)
    @given(TEXTS, st.sampled_from(taggers))
    def check(text: str, model: Any) -> None:
        nonlocal seen
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tokenizers without words
            pipeline = TokenClassificationPipeline(
                model=model, tokenizer=tokenizer, aggregation_strategy="first"
            )
            expected = pipeline(text)
        found = tag(model, own, text)
        assert [(span.start, span.end, span.label) for span in found] == [
            (entity["start"], entity["end"], entity["entity_group"]) for entity in expected
        ]
        np.testing.assert_allclose([span.score for span in found], [e["score"] for e in expected], atol=1e-5)
        assert [span.text for span in found] == [text[span.start : span.end] for span in found]
        seen += len(found)

    check()
    assert seen > 50


SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from(["A", "B-C"])), max_size=6)


SCHEMES = {"BIO": "BIIB", "BILOU": "BILU", "BIOES": "BIES"}
"""The letters of the first, a middle, the last and the only word of a span."""


@pytest.mark.parametrize("letters", SCHEMES.values(), ids=SCHEMES)
@given(spans=SPANS)
def test_spans_are_those_that_a_scheme_encodes(letters: str, spans: list[tuple[int, int, str]]) -> None:
    tags, expected = [], []
    for gap, words, name in spans:
        tags += ["O"] * gap
        expected.append([len(tags), len(tags) + words])
        inner = letters[0] + letters[1] * (words - 2) + letters[2]
        tags += [f"{letter}-{name}" for letter in (inner if words > 1 else letters[3])]
    names = ["O", *(f"{letter}-{name}" for letter in sorted({*letters}) for name in ("A", "B-C"))]
    indices = np.array([names.index(tag) for tag in tags], np.int64)
    assert TagScheme(names).groups(indices).tolist() == expected


@given(SPANS)
def test_iob1_begins_a_span_with_b_only_after_another_of_its_name(spans: list[tuple[int, int, str]]) -> None:
    tags, expected = ["O"], []
    for gap, words, name in spans:
        tags += ["O"] * gap
        expected.append([len(tags), len(tags) + words])
        first = "B" if tags[-1] in (f"B-{name}", f"I-{name}") else "I"
        tags += [f"{first}-{name}", *[f"I-{name}"] * (words - 1)]
    names = ["I-A", "I-B-C", "B-A", "B-B-C", "O"]
    indices = np.array([names.index(tag) for tag in tags], np.int64)
    assert TagScheme(names).groups(indices).tolist() == expected


def test_a_damaged_bilou_sequence_ends_spans_after_l_and_around_u() -> None:
    scheme = TagScheme(["O", "B-A", "I-A", "L-A", "U-A"])
    assert scheme.groups(np.array([3, 3, 2, 4, 2, 2, 1])).tolist() == [
        [0, 1],
        [1, 2],
        [2, 3],
        [3, 4],
        [4, 6],
        [6, 7],
    ]


def test_tags_without_o_put_every_word_into_a_span() -> None:
    scheme = TagScheme(["LABEL_0", "LABEL_1"])
    assert scheme.groups(np.array([0, 0, 1, 0])).tolist() == [[0, 2], [2, 3], [3, 4]]


@given(st.text(st.characters(), max_size=20), st.data())
def test_utf16_offsets_count_as_javascript_does(text: str, data: Any) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    [span] = utf16_offsets(text, [Span(start, end, "A", 1.0, text[start:end])])
    units = text.encode("utf-16-le", "surrogatepass")
    assert units[2 * span.start : 2 * span.end].decode("utf-16-le", "surrogatepass") == text[start:end]


@given(st.integers(0, 500), st.integers(1, 60))
def test_every_token_belongs_to_one_window_with_context_on_both_sides(tokens: int, room: int) -> None:
    windows = cut_windows(tokens, room)
    owned = [token for _, _, own in windows for token in range(own.start, own.stop)]
    assert owned == list(range(tokens))
    for (first, last, own), after in zip(windows, [*windows[1:], None], strict=True):
        assert last - first <= room
        assert first <= own.start <= own.stop <= last
        if after is not None and room >= 4:
            assert last - after[0] >= room // 4
            assert abs((last - own.stop) - (after[2].start - after[0])) <= 1


@pytest.mark.parametrize("kind", [wordpiece, byte_level, unigram])
@settings(max_examples=30, deadline=None)
@given(text=TEXTS)
def test_windows_hold_the_tokens_of_the_whole_text(kind: Any, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    [whole], [cut] = windows_of(tokenizer, 9999)([text]), windows_of(tokenizer, 9)([text])
    assert all(len(window.ids) <= 9 for window in cut.windows)
    ids = cut.join([np.array(window.ids) for window in cut.windows])
    np.testing.assert_array_equal(ids, np.array(whole.windows[0].ids)[whole.inner[0]])
    assert {(window.ids[0], window.ids[-1]) for window in cut.windows} == {
        (tokenizer.cls_token_id, tokenizer.sep_token_id)
    }
    np.testing.assert_array_equal(cut.words.first, whole.words.first)
    np.testing.assert_array_equal(cut.words.starts, whole.words.starts)


TOKENIZERS = {kind: make_tokenizer(kind, 10_000) for kind in (wordpiece, byte_level, unigram)}


@pytest.mark.parametrize("kind", [wordpiece, byte_level, unigram])
def test_an_entity_is_found_at_1000_places_of_texts_of_5000_tokens(kind: Any) -> None:
    """By a model that recognizes its tokens anywhere: the reading must lose no place, and shift none."""
    own, scheme = windows_of(TOKENIZERS[kind], 64), TagScheme(["O", "I-PER"])
    filler = ["the", "capital", "means"] * 1700
    others = {token for window in own([" ".join(filler)])[0].windows for token in window.ids}
    entity = [token for token in own(["ZZZ"])[0].windows[0].ids if token not in others]
    for first in range(0, 25, 5):
        words = filler.copy()
        words[first:5000:25] = ["ZZZ"] * 200
        text = " ".join(words)
        [read] = own([text])
        logits = read.join([np.eye(2)[np.isin(window.ids, entity).astype(int)] for window in read.windows])
        assert len(logits) >= 5000
        spans = find_spans(text, read.words, logits, scheme)
        found = [(span.text.strip(), span.end) for span in spans]
        assert found == [("ZZZ", place.end()) for place in re.finditer("ZZZ", text)]


@pytest.mark.parametrize("kind", [wordpiece, byte_level, unigram])
@pytest.mark.parametrize("tags", [BIO, ["O", "B-A", "I-A", "L-A", "U-A"], ["O", "A", "B"]], ids=str)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS, data=st.data())
def test_where_no_word_is_missed_every_character_of_the_words_in_spans_is_still_in_one(
    kind: Any, tags: list[str], text: str, data: Any
) -> None:
    [read], scheme = windows_of(TOKENIZERS[kind], 9)([text]), TagScheme(tags)
    number = len(read.words)
    chosen = st.lists(st.integers(0, len(tags) - 1), min_size=number, max_size=number)
    codes, masked = [], []
    for tags_of_words in (data.draw(chosen), data.draw(chosen)):
        logits = np.zeros((len(read.offsets), len(tags)))
        logits[read.words.first, tags_of_words] = 1
        covered = [range(span.start, span.end) for span in find_spans(text, read.words, logits, scheme)]
        masked.append({place for places in covered for place in places})
        codes.append(
            scheme.codes(np.array(tags_of_words, int), np.arange(number) == 0, np.zeros(number, bool))
        )
    words = zip(read.words.starts.tolist(), read.words.ends.tolist(), strict=True)
    in_words = {place for start, end in words for place in range(start, end)}
    if (masked[0] - masked[1]) & in_words:
        reference = Reference(codes[0], words=Lists.consecutive([number]))
        assert LOSSES["missed_words"].values(codes[1], reference).tolist() == [1]
        assert LOSSES["missed_share"].values(codes[1], reference)[0] > 0


def test_an_invalid_surrogate_does_not_move_offsets() -> None:
    tokenizer = TOKENIZERS[byte_level]
    [read] = windows_of(tokenizer, 64)(["\ud83d\ude42\udc00 Paris"])
    assert (read.words.starts[-1], read.words.ends[-1]) == (4, 9)


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\x00"])
@pytest.mark.parametrize("kind", [wordpiece, byte_level, unigram])
def test_a_text_without_words_has_a_window_and_may_have_no_spans(kind: Any, text: str) -> None:
    [read] = windows_of(TOKENIZERS[kind], 64)([text])
    [window] = read.windows
    logits = read.join([np.zeros((len(window.ids), 2))])
    assert len(read.words) <= len(logits)
    assert find_spans(text, read.words, logits, TagScheme(["O", "A"])) == []


def test_without_special_tokens_an_empty_text_is_one_padding_token() -> None:
    rust = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    [read] = windows_of(rust, 8)([""])
    assert [list(window.ids) for window in read.windows] == [[0]]
    assert len(read.words) == len(read.join([np.zeros((1, 2))])) == 0


def test_a_length_without_room_for_text_is_refused() -> None:
    with pytest.raises(BadOption, match="no room"):
        windows_of(TOKENIZERS[wordpiece], 2)


def test_the_first_token_starts_a_word_even_if_it_is_a_sub_word() -> None:
    words = Words.of_tokens(np.array([0, 2, 5]), np.array([2, 4, 6]), np.array([True, True, False]))
    assert (words.first.tolist(), words.starts.tolist(), words.ends.tolist()) == ([0, 2], [0, 5], [4, 6])
