"""The tagger: what it finds at full depth is what transformers finds, whatever else is in the batch."""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TokenClassificationPipeline

from offramp import Classifier, ExitModel, Runner, Spans, Tagger
from offramp.errors import BadData, Incompatible
from offramp.inference.tagger import find_spans

TEXTS = [
    "a good film",
    "b",
    "",
    "  ",
    "x y z a bad film",
    "good 🙂 bad e\u0301 film",
    "\x00a\x1b b",
    "\ud83dgood film",
]


def test_at_full_depth_spans_are_those_of_transformers(
    plain_tagger: Any, tagger: Tagger, tokenizer: Any
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = TokenClassificationPipeline(
            model=plain_tagger, tokenizer=tokenizer, aggregation_strategy="first"
        )
        valid = [text for text in TEXTS if "\ud83d" not in text]
        expected = [
            [
                (each["start"], each["end"], each["entity_group"], text[each["start"] : each["end"]])
                for each in pipeline(text)
            ]
            for text in valid
        ]
    found = tagger.tag(valid, policy="never")
    assert [[(each.start, each.end, each.label, each.text) for each in spans] for spans in found] == expected
    assert {spans.layer for spans in found} == {4}
    assert any(expected)


@pytest.mark.parametrize("policy", ["never", "entropy:0.8", "confidence:0.5", "patience:1", "layer:0"])
def test_a_text_is_tagged_alike_alone_in_a_list_and_in_a_stream(tagger: Tagger, policy: str) -> None:
    together = tagger.tag(TEXTS, policy=policy)
    alone = [tagger.tag(text, policy=policy) for text in TEXTS]
    streamed = [*tagger.tag(iter(TEXTS), policy=policy)]
    for first, second, third in zip(together, alone, streamed, strict=True):
        assert (first.layer, second.layer) == (third.layer, third.layer)
        for one, *others in zip(first, second, third, strict=True):
            for other in others:
                assert (one.start, one.end, one.label, one.text) == (
                    other.start,
                    other.end,
                    other.label,
                    other.text,
                )
                assert one.score == pytest.approx(other.score, abs=1e-5)


def test_texts_exit_at_their_own_layers(tagger: Tagger) -> None:
    found = tagger.tag(TEXTS, policy="patience:1")
    assert len({spans.layer for spans in found}) > 1
    assert isinstance(found[0], Spans)
    assert found[0].layers == 4


@torch.no_grad()
def finder_of(entity: str, filler: str, plain: Any, tokenizer: Any) -> Any:
    """The model with a last matrix that tells an entity from the filler around it, at most of its positions."""
    places = torch.eye(38, dtype=torch.bool)
    rows = [[entity if here else filler for here in row] for row in places.tolist()]
    tokens = tokenizer([" ".join(row) for row in rows], return_tensors="pt")["input_ids"]
    states = plain.bert(tokens).last_hidden_state[:, 1:-1]
    towards = states[places].mean(0) - states[~places].mean(0)
    least = (states[places] @ towards).quantile(0.3)
    plain.classifier.weight.copy_(torch.stack([0 * towards, towards, 0 * towards]))
    plain.classifier.bias.copy_(torch.stack([0 * least, -least, 0 * least - 99]))
    return plain


def test_an_entity_at_200_places_of_a_text_of_5000_tokens_is_found_wherever_the_original_finds_it(
    tiny_tagger: Callable[..., Any], tokenizer: Any
) -> None:
    """The original reads the same windows; most of them are alike, so it reads each only once."""
    labels = ["O", "B-PER", "I-PER"]
    plain = finder_of("q", "film", tiny_tagger("bert", layers=1, labels=labels), tokenizer)
    tagger = Tagger(Runner(ExitModel.from_encoder(plain).eval(), tokenizer, "never"))

    @cache
    @torch.no_grad()
    def logits_of(window: tuple[int, ...]) -> Any:
        return plain(torch.tensor([window])).logits[0].numpy()

    found = 0
    for place in range(0, 5000, 25):
        text = " ".join(["film"] * place + ["q"] + ["film"] * (4999 - place))
        [read] = tagger.tokenizer([text])
        assert len(read.windows) > 100
        logits = read.join([logits_of(tuple(window.ids)) for window in read.windows])
        expected = find_spans(text, read.words, logits, tagger.scheme)
        spans = tagger.tag(text)
        assert [(each.start, each.end, each.label) for each in spans] == [
            (each.start, each.end, each.label) for each in expected
        ]
        found += [(each.start, each.text) for each in spans] == [(5 * place, "q")]
    assert found > 100


def test_the_layer_of_a_long_text_is_that_of_its_deepest_window(tagger: Tagger) -> None:
    text = "good film x " * 60
    [read] = tagger.tokenizer([text])
    decision = tagger.runner.engine.run(read.windows, tagger.runner.resolve_policy("confidence:0.5"))
    found = tagger.tag(text, policy="confidence:0.5")
    assert found.layer == max(tagger.runner.runtime.info.exits[exit] for exit in decision.exits)


def test_utf16_offsets_are_given_on_request(tagger: Tagger) -> None:
    text = "🙂🙂 good film"
    found, units = tagger.tag(text), tagger.tag(text, utf16=True)
    late = [pair for pair in zip(found, units, strict=True) if pair[0].start > 2]
    assert late
    assert all((one.start + 2, one.end + 2, one.text) == (two.start, two.end, two.text) for one, two in late)


def test_an_invalid_surrogate_is_one_character(tagger: Tagger) -> None:
    for invalid in ("\ud83d", "\udc00"):
        expected = tagger.tag("\ufffd good film")
        assert tagger.tag(f"{invalid} good film") == expected


@pytest.mark.parametrize("text", ["", " ", "\n", "\x00"])
def test_a_text_without_words_has_no_spans(tagger: Tagger, text: str) -> None:
    spans = tagger.tag(text, policy="never")
    assert [span for span in spans if span.text.strip()] == [] or text == "\x00"
    assert spans.finite


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([("a", "b")], "item 0 is a pair of texts"),
        (["a", 3], "item 1 is int 3"),
        (7, "is not a text or a list of texts"),
        (b"a", "is not a text or a list of texts"),
    ],
)
def test_other_things_than_texts_are_refused(tagger: Tagger, texts: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        [*tagger.tag(texts)]


def test_all_texts_of_a_list_are_checked_before_any_of_them_runs(
    tagger: Tagger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagger.runner.engine, "run", lambda *_: pytest.fail("a text ran"))
    with pytest.raises(BadData, match="item 1 is int 3"):
        tagger.tag(["a", 3])


def test_no_texts_have_no_spans(tagger: Tagger) -> None:
    assert tagger.tag([]) == []


def test_a_classifier_is_not_a_tagger(make_model: Callable[..., Any], tokenizer: Any) -> None:
    with pytest.raises(Incompatible, match="does not tag tokens; use Classifier"):
        Tagger(Runner(make_model(num_labels=2), tokenizer))


def test_a_tagger_is_not_a_classifier(tagger: Tagger) -> None:
    with pytest.raises(Incompatible, match="the model tags tokens; use Tagger"):
        Classifier(tagger.runner)


def test_logits_that_are_not_finite_give_no_spans(plain_tagger: Any, tokenizer: Any) -> None:
    model = ExitModel.from_encoder(plain_tagger).eval()
    with torch.no_grad():
        model.heads.classifiers[-1].weight.fill_(float("nan"))
    spans = Tagger(Runner(model, tokenizer)).tag("a good film", policy="never")
    assert spans == []
    assert not spans.finite


def test_a_tagger_is_saved_with_its_folder(
    tagger: Tagger, tokenizer: Any, plain_tagger: Any, tmp_path: Path
) -> None:
    ExitModel.from_encoder(plain_tagger).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    loaded = Tagger.from_pretrained(tmp_path / "model", "never")
    assert loaded.tag(TEXTS) == tagger.tag(TEXTS, policy="never")
    loaded.save_pretrained(tmp_path / "copy")
    assert Tagger.from_pretrained(tmp_path / "copy").tag("a good film") == loaded.tag("a good film")
    assert loaded.runner.runtime.info.labels == tagger.runner.runtime.info.labels
