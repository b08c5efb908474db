"""Training of taggers: words with tags, and texts without."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerFast

from offramp import Task, train
from offramp.errors import BadData
from offramp.models.exit_model import ExitModel
from offramp.problems import UNLABELLED
from offramp.tags import token_tags
from offramp.training import features
from offramp.training.data import TagCollator, add_teacher, tokenize_words
from offramp.training.features import WordSample

PIECES = [*"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), "good", "bad", "##film", "film"]
VOCABULARY = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *PIECES]
TAGS = ["O", "B-X", "I-X"]


@pytest.fixture(scope="module")
def subwords() -> PreTrainedTokenizerFast:
    rust = Tokenizer(WordPiece({piece: row for row, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    rust.pre_tokenizer = BertPreTokenizer()
    rust.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=rust, pad_token="[PAD]", unk_token="[UNK]")


def tagged(rows: int, seed: int = 0) -> datasets.Dataset:
    """`good` begins a span, and words that start with a continue one, or begin it."""
    chance = random.Random(seed)
    choices = ["good", "ab", "abc", "bad", "cde", "film", "j"]
    words = [chance.choices(choices, k=chance.randint(1, 9)) for _ in range(rows)]
    tags = [[1 if word == "good" else 2 if word[0] == "a" else 0 for word in text] for text in words]
    kinds = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=TAGS)),
        }
    )
    return datasets.Dataset.from_dict({"tokens": words, "ner_tags": tags}, kinds)


def options(folder: Path, **more: Any) -> dict[str, Any]:
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    return {"output_dir": folder, **quiet, **more}


FAST = {"learning_rate": 5e-3, "per_device_train_batch_size": 16}


def task(rows: int = 300) -> Task:
    return Task.from_dataset(
        datasets.DatasetDict({"train": tagged(rows), "validation": tagged(60, seed=1)}), name="tags"
    )


@pytest.mark.parametrize("recipe", ["final", "joint:head_epochs=2", "pabee", "deebert", "berxit"])
def test_recipes_learn_tags(
    recipe: str, tiny_encoder: Callable[..., Any], subwords: Any, tmp_path: Path
) -> None:
    trained = train(
        tiny_encoder("bert", layers=2),
        task(),
        recipe,
        options(tmp_path, num_train_epochs=6, **FAST),
        tokenizer=subwords,
    )
    scores = trained.scores["entity_f1"]
    assert trained.model.config.problem == "token_classification"
    assert scores[-1] > 0.9
    if recipe.startswith("joint"):
        assert min(scores) > 0.5


def test_frozen_heads_learn_from_a_tagger_without_labels_and_leave_it_as_it_is(
    tiny_tagger: Callable[..., Any], subwords: Any, tmp_path: Path
) -> None:
    model = tiny_tagger("bert", layers=2, labels=TAGS)
    model.save_pretrained(tmp_path / "tagger")
    subwords.save_pretrained(tmp_path / "tagger")
    texts = datasets.Dataset.from_dict({"text": [" ".join(words) for words in tagged(200)["tokens"]]})
    trained = train(str(tmp_path / "tagger"), texts, "frozen:epochs=60", options(tmp_path / "run"))
    inputs = dict(subwords(texts["text"][:20], padding=True, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        found = trained.model(**inputs)
        expected = model(**inputs).logits
    assert torch.equal(found.logits, expected)
    same = found.exit_logits.argmax(-1) == expected.argmax(-1)[..., None]
    words = tokenize_words(texts.select(range(20)), subwords, 40)["words"]
    agreed = torch.cat([same[row, places] for row, places in enumerate(words)]).float().mean(0)
    assert agreed.min() > 0.75
    assert trained.model.config.label_names == TAGS


def test_the_tags_of_files_with_labels_count_too(
    tiny_tagger: Callable[..., Any], subwords: Any, tmp_path: Path
) -> None:
    model = tiny_tagger("bert", layers=2, labels=TAGS)
    run = train(model, task(), "frozen:epochs=2", options(tmp_path), tokenizer=subwords)
    assert set(run.scores) == {"entity_f1"}
    assert len(run.scores["entity_f1"]) == 3


@given(
    st.lists(st.text("abcdefghijkX.", min_size=1, max_size=5), min_size=1, max_size=20), st.integers(6, 40)
)
def test_each_word_has_its_tag_at_its_first_token_in_one_row(
    subwords_of: Any, words: list[str], length: int
) -> None:
    rows = datasets.Dataset.from_dict(
        {"text": [" ".join(words)], "words": [words], "label": [[*range(len(words))]]}
    )
    data = tokenize_words(rows, subwords_of, length)
    whole = subwords_of([words], is_split_into_words=True)
    places = whole.word_ids(0)
    expected = [
        (token, word)
        for token, word, before in zip(whole["input_ids"][0], places, [None, *places], strict=False)
        if word is not None and word != before
    ]
    found = [
        (token, tag)
        for ids, tags in zip(data["input_ids"], data["labels"], strict=True)
        for token, tag in zip(ids, tags, strict=True)
        if tag != UNLABELLED
    ]
    assert found == expected
    assert all(len(ids) <= length for ids in data["input_ids"])


@pytest.fixture(scope="module")
def subwords_of(subwords: Any) -> Any:
    datasets.disable_progress_bars()
    return subwords


def test_a_word_without_a_token_has_no_tag() -> None:
    offsets = np.array([[0, 0], [0, 1], [4, 5], [0, 0]])
    assert token_tags(offsets, ["a", "\x00", "b"], [5, 6, 7], False).tolist() == [-100, 5, 7, -100]


def test_tags_are_padded_beside_their_tokens(subwords: Any) -> None:
    rows = [{"input_ids": [4, 5, 6], "labels": [1, -100, 2]}, {"input_ids": [7], "labels": [0]}]
    assert TagCollator(subwords)(rows)["labels"].tolist() == [[1, -100, 2], [0, -100, -100]]


def test_a_sample_keeps_words_in_spans_and_an_equal_share_of_the_others() -> None:
    sample = WordSample(np.zeros((400, 1, 1), np.float16))
    chance = np.random.default_rng(3)
    for start in range(0, 20_000, 50):
        numbers = np.arange(start, start + 50)
        in_span = numbers % 200 == 0  # 100 of 20,000
        sample.add(chance.random((50, 1, 1)), np.stack([numbers, numbers], 1), in_span)
    kept = sample.words[: sample.count, 0]
    assert set(range(0, 20_000, 200)) <= {*kept.tolist()}
    others = kept[kept % 200 != 0]
    assert 100 <= len(others) <= 300
    assert abs((others < 10_000).mean() - 0.5) < 0.2  # early words and late ones alike
    assert sample.in_span[: sample.count].tolist() == (kept % 200 == 0).tolist()


def test_heads_learn_from_no_more_words_than_fit(
    tiny_encoder: Callable[..., Any], subwords: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "MOST_WORDS", 60)
    trained = train(
        tiny_encoder("bert", layers=1),
        task(100),
        "joint:head_epochs=1",
        options(tmp_path, num_train_epochs=1, **FAST),
        tokenizer=subwords,
    )
    assert len(trained.scores["entity_f1"]) == 2
    assert not [*tmp_path.glob("phase-2/*.npy")]


def test_texts_for_tags_that_are_no_lists_are_refused() -> None:
    rows = datasets.Dataset.from_dict({"text": ["a b", "c"], "label": [["O"], ["B-X"]]})
    with pytest.raises(BadData, match="expected a list of its words"):
        Task.from_dataset(rows, problem_type="token_classification").load()


def test_a_trained_tagger_is_read_as_one_by_transformers(
    tiny_encoder: Callable[..., Any], subwords: Any, tmp_path: Path
) -> None:
    trained = train(tiny_encoder("bert", layers=1), task(40), "final", options(tmp_path), tokenizer=subwords)
    model = AutoModelForTokenClassification.from_pretrained(trained.folder, trust_remote_code=False)
    assert [model.config.id2label[row] for row in range(3)] == TAGS


def test_a_tagger_teaches_every_token_of_texts_without_labels(
    tiny_tagger: Callable[..., Any], subwords: Any, tmp_path: Path
) -> None:
    model = ExitModel.from_encoder(tiny_tagger("bert", layers=2, labels=TAGS))
    texts = datasets.Dataset.from_dict({"text": [" ".join(words) for words in tagged(30)["tokens"]]})
    rows = tokenize_words(texts, subwords, 12)  # some texts are several rows
    taught = add_teacher(model, rows, TagCollator(subwords), tmp_path / "teacher.npy", 7, progress=False)
    assert len(taught) > len(texts)
    taught = taught.remove_columns(["words", "length"])
    for row in taught.select(range(0, len(taught), 3)):
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
        torch.testing.assert_close(torch.tensor(row["teacher"]), alone, atol=1e-5, rtol=1e-5)
    batch = TagCollator(subwords)([taught[row] for row in (0, 5, 9)])
    assert batch["teacher"].shape == (*batch["input_ids"].shape, 3)


def test_the_backbone_of_a_tagger_is_tuned_with_the_original_as_teacher(
    tiny_tagger: Callable[..., Any], subwords: Any, tmp_path: Path
) -> None:
    plain = tiny_tagger("bert", layers=2, labels=TAGS)
    model = ExitModel.from_encoder(plain)
    texts = datasets.Dataset.from_dict({"text": [" ".join(words) for words in tagged(200)["tokens"]]})
    run = train(
        model,
        texts,
        "mixed:fine_tune=false,head_epochs=20",
        options(tmp_path / "run", num_train_epochs=10, **FAST),
        tokenizer=subwords,
    )
    inputs = dict(subwords(texts["text"][:40], padding=True, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        found, expected = run.model(**inputs), plain(**inputs).logits
    same = found.exit_logits.argmax(-1) == expected.argmax(-1)[..., None]
    assert same[inputs["attention_mask"].bool()].float().mean(0).min() > 0.8
    assert not torch.equal(found.logits, expected)
