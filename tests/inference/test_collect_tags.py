"""Traces of taggers: their words, windows and labels, and what is measured from them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast

from offramp import ExitModel, Guarantee, Runner, Tagger, Trace, calibrate, collect
from offramp.errors import BadOption
from offramp.guarantees.losses import OF_TAGS
from offramp.measuring.losses import mean_losses
from offramp.measuring.sweep import sweep
from offramp.policy import Policy
from offramp.tags import BEGINS, CONTINUES, SPECIAL, token_kinds

TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
WORDS = [*"abcdefghij", "good", "bad", "film"]


@pytest.fixture(scope="module")
def runner(tiny_tagger: Callable[..., Any], tokenizer: PreTrainedTokenizerFast) -> Runner:
    model = ExitModel.from_encoder(tiny_tagger("bert", labels=TAGS))
    torch.manual_seed(7)
    for head in model.heads.classifiers[:-1]:
        torch.nn.init.normal_(head.weight, std=0.5)
    return Runner(model.eval(), tokenizer)


def tagged_rows(count: int, longest: int = 12) -> dict[str, list[Any]]:
    draw = np.random.default_rng(3)
    words = [draw.choice(WORDS, draw.integers(1, longest)).tolist() for _ in range(count)]
    return {
        "text": [" ".join(each) for each in words],
        "words": words,
        "label": [draw.integers(0, 5, len(each)).tolist() for each in words],
    }


@pytest.mark.parametrize("policy", ["never", "entropy:0.9", "patience:1", "layer:2"])
def test_a_trace_decides_as_the_tagger_does_also_for_texts_in_windows(runner: Runner, policy: str) -> None:
    texts = ["good film", "", "a bad film x " * 30, "x y", "film " * 100]
    trace = collect(runner, {"text": texts}, progress=False)
    assert trace.continues is not None
    assert trace.continues.sum() == len(trace) - len(texts) > 5
    decision = Policy.parse(policy).decide_trace(trace)
    found = Tagger(runner).tag(texts, policy=policy)
    layers = np.asarray(trace.layers)[trace.by_text(decision.exits)]
    assert [spans.layer for spans in found] == layers.tolist()
    full = Tagger(runner).tag(texts, policy="never")
    changed = ~trace.by_text(trace.agrees(decision.logits), np.logical_and)
    places = [[[(s.start, s.end, s.label) for s in spans] for spans in each] for each in (found, full)]
    assert changed.tolist() == [one != two for one, two in zip(*places, strict=True)]


def test_mean_losses_are_those_of_whole_texts_by_their_spans(runner: Runner) -> None:
    texts = [" ".join(words) for words in tagged_rows(40, longest=150)["words"]]
    trace = collect(runner, {"text": texts}, progress=False)
    means = mean_losses(trace, Policy.parse("layer:0").decide_trace(trace).logits, OF_TAGS.values())
    found, full = (Tagger(runner).tag(texts, policy=policy) for policy in ("layer:0", "never"))
    rows = []
    for text, *both in zip(texts, found, full, strict=True):
        words = {match.start() for match in re.finditer(r"\S+", text)}
        now, before = (
            {word for word in words for span in spans if span.start <= word < span.end} for spans in both
        )
        places = [[(span.start, span.end, span.label) for span in spans] for spans in both]
        rows.append([places[0] != places[1], bool(before - now), len(before - now) / max(1, len(before))])
    expected = np.mean(rows, axis=0)
    assert [means[name] for name in ("changed_spans", "missed_words", "missed_share")] == pytest.approx(
        expected
    )
    assert 0 < expected[2] < expected[1]


def test_entity_f1_at_every_threshold_is_that_of_seqeval(runner: Runner) -> None:
    rows = tagged_rows(60, longest=60)  # some in two windows
    trace = collect(runner, rows, progress=False)
    assert trace.metrics == ()
    curves = sweep(trace, ["layer", "margin"], points=6).curves
    points = [(rule, point) for rule, curve in curves.items() for point in curve.points]
    for rule, point in points:
        decision = Policy.parse(f"{rule}:{point.threshold}").decide_trace(trace)
        assert trace.tagged is not None
        tags = decision.logits[trace.tagged].argmax(-1).tolist()
        found, first = [], 0
        for words in rows["words"]:
            found.append([TAGS[tag] for tag in tags[first : first + len(words)]])
            first += len(words)
        gold = [[TAGS[tag] for tag in each] for each in rows["label"]]
        assert point.scores["entity_f1"] == pytest.approx(f1_score(gold, found))
        assert (
            point.scores["agreement"] == trace.by_text(trace.agrees(decision.logits), np.logical_and).mean()
        )
    assert len({point.scores["entity_f1"] for _, point in points}) > 5


def test_a_fitted_rule_is_swept_over_labelled_tags(runner: Runner) -> None:
    trace = collect(runner, tagged_rows(80), progress=False)
    found = sweep(trace, ["agreement", "layer"], bootstrap=20)
    full = found.curves["layer"].points[-1]
    assert full.scores["agreement"] == 1
    assert found.curves["agreement"].points[-1].scores["entity_f1"] == full.scores["entity_f1"]
    assert all(
        point.interval[0] <= point.interval[1] for point in found.curves["agreement"].points if point.interval
    )


@pytest.mark.parametrize("tags", [TAGS, ["O", "B-A", "I-A", "L-A", "U-A"]], ids=["BIO", "BILOU"])
def test_a_fitted_rule_that_runs_to_the_last_exit_agrees_with_full_depth_also_at_seams(
    runner: Runner, tags: list[str]
) -> None:
    rows = tagged_rows(40, longest=150)  # most in several windows
    trace = replace(collect(runner, rows, progress=False), label_names=tuple(tags))
    assert trace.continues is not None
    curve = sweep(trace, "agreement").curves["agreement"]
    assert curve.points[-1].cost.mean_layer == 4
    assert curve.points[-1].scores["agreement"] == 1
    assert sweep(trace, "agreement").examples == 40


@pytest.mark.parametrize("risk", ["missed", "missed_share", "missed,changed"])
def test_a_bound_on_missed_words_is_refused_where_every_word_is_in_a_span(runner: Runner, risk: str) -> None:
    trace = collect(runner, tagged_rows(300), progress=False)
    unnamed = replace(trace, label_names=tuple(f"LABEL_{tag}" for tag in range(5)))
    with pytest.raises(BadOption, match=r"none of the tags \(LABEL_0, .*\) is O, .* none can be missed"):
        calibrate(unnamed, "entropy", Guarantee(0.3, risk=risk))
    changed = calibrate(unnamed, "layer", Guarantee(0.99))
    assert changed.policy.certificate is not None


def test_a_trace_keeps_what_rules_spans_and_labels_need_and_no_other_token(
    runner: Runner, tmp_path: Path
) -> None:
    rows = tagged_rows(20)
    trace = collect(runner, rows, progress=False)
    assert len(trace.logits) == sum(map(len, rows["words"]))  # neither [CLS] nor [SEP]
    assert trace.labels is not None
    assert trace.labels.tolist() == [tag for tags in rows["label"] for tag in tags]
    trace.save(tmp_path / "a.trace")
    again = Trace.load(tmp_path / "a.trace")
    np.testing.assert_array_equal(again.logits, trace.logits)
    unlabelled = collect(runner, {"text": rows["text"]}, progress=False)
    np.testing.assert_array_equal(unlabelled.logits, trace.logits)
    assert replace(trace, labels=None).tagged is None


def test_words_begin_as_the_vocabulary_marks_them() -> None:
    pieces = {"[UNK]": 0, "[CLS]": 1, "an": 2, "##n": 3, "!": 4}
    tokenizer = Tokenizer(WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[UNK]", "[CLS]"])
    assert token_kinds(tokenizer, 0).tolist() == [BEGINS, SPECIAL, BEGINS, CONTINUES, BEGINS]
    bytes_ = Tokenizer(BPE({"<s>": 0, "a": 1, "Ġ": 2, "Ġa": 3}, [("Ġ", "a")]))
    bytes_.add_special_tokens(["<s>"])
    assert token_kinds(bytes_, None).tolist() == [SPECIAL, CONTINUES, BEGINS, BEGINS]
