"""A retrofit of tiny random taggers: what it promises about texts, also about those that are read in windows."""

import json
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, TokenClassificationPipeline
from typer.testing import CliRunner

import offramp.training.run
from offramp import ExitModel, Guarantee, Tagger, Trace, retrofit
from offramp.cli import app
from offramp.engine import Engine
from offramp.errors import BadData, BadLabels, BadOption
from offramp.inference.tagger import find_spans
from offramp.inference.texts import BatchTokenizer
from offramp.inference.windows import WindowTokenizer
from offramp.retrofits import choice
from offramp.retrofits.original import load_original
from offramp.retrofits.text_split import split_texts
from offramp.runtimes import runtime_of
from offramp.serve.batcher import Request
from offramp.serve.options import ServerOptions
from offramp.serve.server import load
from offramp.tags import TagScheme

TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
WORDS = [*"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film"]
ROOM = 38
"""Words that fit into a window: the model has 40 positions."""


def make_texts(count: int = 600) -> list[str]:
    """Every twentieth is longer than a window."""
    draw = random.Random(0)
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(*((45, 90) if row % 20 == 0 else (1, 6)))))
        for row in range(count)
    ]


@pytest.fixture(scope="module", autouse=True)
def quick_timing() -> Iterator[None]:
    """Timing is not tested here, so it need not be exact."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offramp.measuring.speed.REPEATS", 1)
        patch.setattr("offramp.measuring.speed.SINGLES", 3)
        yield


@pytest.fixture(scope="module")
def original(
    tiny_tagger: Callable[..., Any], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A random tagger whose layers change little, so that early exits can tell what it says, and mostly O."""
    model = tiny_tagger("bert", labels=TAGS)
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.output.dense.weight.mul_(0.02)
            layer.output.dense.weight.mul_(0.02)
        model.classifier.weight.mul_(8)
        model.classifier.bias[0] += 2
    folder: Path = tmp_path_factory.mktemp("taggers") / "my-ner"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def done(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("retrofit") / "fast-ner"
    return retrofit(original, make_texts(), out, 0.15, runtime="torch", data="logs.csv")


def spans_of_original(folder: Path, texts: list[str]) -> list[list[tuple[int, int, str]]]:
    """By transformers' pipeline, where a text fits into the model's positions; else from the windows of a tagger."""
    pipeline = TokenClassificationPipeline(
        model=AutoModelForTokenClassification.from_pretrained(folder),
        tokenizer=load_original(folder).tokenizer,
        aggregation_strategy="first",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            [(each["start"], each["end"], each["entity_group"]) for each in pipeline(text)] for text in texts
        ]


def test_changed_texts_are_counted_against_transformers_own_spans(original: Path, done: Any) -> None:
    test = split_texts(make_texts()).test.texts
    fits = [text for text in test if isinstance(text, str) and len(text.split()) <= ROOM]
    tagger = Tagger.from_pretrained(done.folder)
    found = [[(s.start, s.end, s.label) for s in spans] for spans in tagger.tag(test)]
    expected = dict(zip(fits, spans_of_original(original, fits), strict=True))
    full = tagger.tag(test, policy="never")
    for text, spans in zip(test, full, strict=True):
        expected.setdefault(text, [(s.start, s.end, s.label) for s in spans])
    changed = [spans != expected[text] for text, spans in zip(test, found, strict=True)]
    assert done.results.retrofitted.losses["changed"] == pytest.approx(np.mean(changed))
    assert 0 < np.mean(changed) <= 0.15
    assert done.results.retrofitted.mean_layer < 4
    assert any(spans != [] for spans in expected.values())
    assert done.results.comparison[1].losses == {"changed": 0, "missed": 0, "missed_share": 0}


def test_the_certificate_speaks_of_texts_and_not_of_their_windows(original: Path, done: Any) -> None:
    certificate = Tagger.from_pretrained(done.folder).runner.policy.certificate
    assert certificate is not None
    assert certificate.summary == (
        "With 95% confidence, at most 15% of texts get spans that differ from my-ner's (on data like logs.csv)."
    )
    split = split_texts(make_texts())
    assert certificate.examples == len(split.calibration) == done.results.examples["calibration"]
    trace = Trace.load(done.folder.parent / "work" / "calibration-fp32.trace")
    assert len(trace) > len(split.calibration)  # some texts have several windows
    card = (done.folder / "README.md").read_text()
    assert certificate.summary in card
    assert "pipeline_tag: token-classification" in card
    assert "tagger.tag(" in card


def test_the_certificate_holds_on_the_texts_that_it_counts(done: Any) -> None:
    policy = Tagger.from_pretrained(done.folder).runner.policy
    trace = Trace.load(done.folder.parent / "work" / "calibration-fp32.trace")
    changed = trace.by_text(~trace.agrees(policy.decide_trace(trace).logits))
    assert changed.mean() == policy.certificate.observed_risk  # type: ignore[union-attr]


def test_full_depth_is_bit_equal_to_the_original(original: Path, done: Any) -> None:
    plain = AutoModelForTokenClassification.from_pretrained(original)
    model = ExitModel.from_pretrained(done.folder)
    ids = torch.tensor([[2, 5, 9, 3], [2, 30, 12, 3]])
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, model(ids).logits)
    assert done.results.full_depth_bit_equal is True


def test_changes_are_reported_by_label_and_with_both_lists_of_spans(original: Path, done: Any) -> None:
    groups = done.results.changes
    assert {group.name for group in groups["label"]} <= {"A", "B"}
    test = split_texts(make_texts()).test.texts
    tagger = Tagger.from_pretrained(done.folder)
    old, new = tagger.tag(test, policy="never"), tagger.tag(test)
    for group in groups["label"]:
        pairs = [
            (
                {(s.start, s.end) for s in before if s.label == group.name},
                {(s.start, s.end) for s in after if s.label == group.name},
            )
            for before, after in zip(old, new, strict=True)
        ]
        assert group.rows == sum(len(before) for before, _ in pairs)
        assert group.different == sum(len(before - after) for before, after in pairs)
    words = [
        word
        for before, after in zip(old, new, strict=True)
        for span in before
        for word in range(span.start, span.end)
        if word == span.start and not any(s.start <= word < s.end for s in after)
    ]
    assert sum(group.different for group in groups["label of words"]) >= len(words)
    report = (done.folder.parent / "report" / "report.txt").read_text()
    assert "Changed spans, by label" in report
    assert "Missed words, by label" in report
    shown = json.loads((done.folder.parent / "report" / "report.json").read_text())["opening"]
    rows = next(block["rows"] for block in shown if block["heading"].startswith("Texts whose spans changed"))
    changed = {
        text: (before, after)
        for text, before, after in zip(test, old, new, strict=True)
        if [(s.start, s.label) for s in before] != [(s.start, s.label) for s in after]
    }
    for _, before, after, text in rows[1:]:
        if text in changed:
            spell = ["; ".join(f"{s.label} {s.text}" for s in spans) or "none" for spans in changed[text]]
            assert [before, after] == spell
    assert len(rows) > 1


def test_a_guarantee_about_missed_words_is_one_sided(original: Path, tmp_path: Path) -> None:
    done = retrofit(
        original,
        make_texts(),
        tmp_path / "out",
        Guarantee(0.1, risk="missed"),
        runtime="torch",
        rule="agreement",
    )
    certificate = done.results.certificate
    assert certificate.risk == "missed_words"
    assert certificate.summary == (
        "With 95% confidence, at most 10% of texts have a word that my-ner marks and that is no longer marked "
        "(on data like the texts)."
    )
    losses = done.results.retrofitted.losses
    assert losses["missed"] <= losses["changed"]
    assert losses["missed_share"] <= losses["missed"]


def test_an_interrupted_retrofit_resumes_with_the_same_result(
    original: Path, done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    arguments: Any = (original, make_texts(), tmp_path / "out", 0.15)
    with monkeypatch.context() as broken:
        broken.setattr(choice, "calibrate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            retrofit(*arguments, runtime="torch", data="logs.csv")
    monkeypatch.setattr(offramp.training.run.Training, "train_heads", interrupt)  # they are trained already
    resumed = retrofit(*arguments, runtime="torch", data="logs.csv")
    for name in ("policy", "exits", "certificate"):
        assert getattr(resumed.results, name) == getattr(done.results, name)


@pytest.fixture(scope="module")
def tuned(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("tuned") / "out"
    return retrofit(original, make_texts(300), out, 0.3, runtime="torch", tune=True, epochs=1)


def test_a_tuned_tagger_is_compared_with_the_original(tuned: Any) -> None:
    full = tuned.results.comparison[1]  # the original without exits; the tuned model differs from it
    assert (full.name, full.losses["changed"]) == ("fp32, full depth", 0)
    assert tuned.results.full_depth_bit_equal is None
    assert (tuned.folder / "reference").is_dir()
    assert tuned.results.certificate.reference == "my-ner"


@pytest.fixture(scope="module")
def new_texts() -> list[str]:
    """Other texts than those of the retrofits, also without words, and longer than a window."""
    return [*dict.fromkeys(f"film {text}" for text in make_texts(120)), "", "a \U0001f642 b", "good " * 90]


@pytest.fixture(scope="module")
def spans_to_keep(original: Path, new_texts: list[str]) -> list[list[tuple[int, int, str]]]:
    """Those of the original, of long texts from the windows that it reads."""
    model = load_original(original)
    scheme, found = TagScheme(TAGS), []
    for text, read in zip(new_texts, model.windows(new_texts), strict=True):
        logits = read.join(model.tag_logits(read.windows))
        found.append([(s.start, s.end, s.label) for s in find_spans(text, read.words, logits, scheme)])
    return found


def test_a_trace_of_a_tuned_tagger_is_compared_with_the_original(
    tuned: Any, new_texts: list[str], spans_to_keep: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "logs.txt").write_text("\n".join(new_texts) + "\n", encoding="utf-8")
    for line in (
        ("trace", tuned.folder, "--data", tmp_path / "logs.txt", "--out", tmp_path / "logs.trace"),
        ("calibrate", tuned.folder, tmp_path / "logs.trace", "--guarantee", 0.4, "--dry-run"),
    ):
        done = CliRunner().invoke(app, [*map(str, line)])
        assert done.exit_code == 0, done.output
    assert "of texts get spans that differ from my-ner's (on data like logs.txt)" in done.stdout
    trace = Trace.load(tmp_path / "logs.trace")
    assert trace.reference_name == "my-ner"
    full = Tagger.from_pretrained(tuned.folder, "never").tag(new_texts)
    changed = [
        [(s.start, s.end, s.label) for s in spans] != kept
        for spans, kept in zip(full, spans_to_keep, strict=True)
    ]
    assert 0 < sum(changed) < len(changed)
    assert (~trace.by_text(trace.agrees(trace.logits[:, -1]), np.logical_and)).tolist() == changed


def test_the_audit_of_a_server_compares_a_tuned_tagger_with_the_original(
    tuned: Any, new_texts: list[str], spans_to_keep: list[Any]
) -> None:
    batcher, _ = load(ServerOptions(str(tuned.folder), audit_share=1.0))
    assert batcher.audit is not None
    # of a request, the audit keeps one text at most
    found = [batcher.submit(Request([text])).result(60).predictions[0] for text in new_texts]
    for _ in range(20_000):
        [report] = batcher.audit.reports()
        if report.examined == len(new_texts):
            break
        time.sleep(0.01)
    batcher.drain(60)
    changed = [
        [(s.start, s.end, s.label) for s in spans] != kept
        for spans, kept in zip(found, spans_to_keep, strict=True)
    ]
    assert 0 < sum(changed) < len(changed)
    assert (report.examined, report.disagreed) == (len(new_texts), sum(changed))


def test_the_original_reads_windows_as_the_engine_does(original: Path) -> None:
    model = load_original(original)
    exits = ExitModel.from_encoder(model.model)
    read = WindowTokenizer(BatchTokenizer(model.tokenizer, model.max_length))(["film " * 100, "", "a b"])
    windows = [window for text in read for window in text.windows]
    logits, _ = Engine(runtime_of(exits)).trace(windows)
    np.testing.assert_allclose(np.concatenate(model.tag_logits(windows)), logits[:, -1], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guarantee": Guarantee(0.1, risk="overlap")}, "is not for taggers; choose one of changed, missed"),
        ({"guarantee": Guarantee(0.1, risk="accuracy")}, "is not for taggers"),
        ({"guarantee": Guarantee({"A": 0.1, "B": 0.1})}, "one bound for a tagger"),
        ({"labels": [[0]] * 600}, "a tagger takes no labels"),
        ({"decide": "B-A>=0.7"}, "is for texts, and this model tags tokens"),
        ({"guarantee": Guarantee(0.1, tolerance=0.1)}, "a tolerance is for numbers"),
        (
            {"guarantee": Guarantee(0.1, risk="missed"), "label_names": [*"VWXYZ"]},
            r"none of the tags \(V, W, X, Y, Z\) is O, so every word is in a span and none can be missed",
        ),
    ],
)
def test_what_is_not_for_taggers_is_refused_in_one_line(
    original: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((BadOption, BadLabels), match=message) as refusal:
        retrofit(original, make_texts(), tmp_path / "out", **{"guarantee": 0.1, **options})
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_pairs_of_texts_are_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="item 0 is a pair of texts"):
        retrofit(original, [("a", "b")] * 600, tmp_path / "out")


def test_risks_of_taggers_are_refused_for_classifiers(
    tiny_classifier: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    tiny_classifier("bert").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(BadOption, match="is for taggers; choose one of changed"):
        retrofit(tmp_path / "model", make_texts(), tmp_path / "out", Guarantee(0.1, risk="missed_share"))
