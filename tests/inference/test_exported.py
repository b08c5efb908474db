"""Classifiers of exported models: the same predictions as in PyTorch."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadOption, CannotLoad, CertificateMismatch
from offramp.folder.manifest import SavedTokenizer
from offramp.inference import Classifier
from offramp.inference.collect import collect
from offramp.inference.texts import BatchTokenizer
from offramp.measuring import Guarantee, calibrate
from offramp.models.exit_model import ExitModel
from offramp.onnx_export import export
from offramp.policy import Policy, fold
from offramp.reports.stored_policy import store_policy
from offramp.rules.agreement import Agreement
from offramp.trace import Trace

TEXTS = ["good film", "", "bad bad bad", "a b c d e f g h i j", "unheard", "z " * 100, "[SEP] a"]
PAIRS = [("good", "bad film"), ("a " * 60, "b " * 50)]


@pytest.mark.parametrize("texts", [TEXTS, PAIRS])
def test_an_exported_model_predicts_as_the_saved_one(saved: Path, exported: Path, texts: list[Any]) -> None:
    expected = Classifier.from_pretrained(saved).predict(texts)
    found = Classifier.from_pretrained(exported, threads=1).predict(texts)
    assert [(each.label, each.layer, each.layers) for each in found] == [
        (each.label, each.layer, each.layers) for each in expected
    ]
    assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("types", [True, False])
def test_tokens_are_those_of_the_transformers_tokenizer(
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    side: str,
    types: bool,
) -> None:
    names = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    monkeypatch.setattr(tokenizer, "truncation_side", side)
    monkeypatch.setattr(tokenizer, "model_input_names", names)
    monkeypatch.setattr(tokenizer, "model_max_length", 20)
    original = BatchTokenizer(tokenizer, 40)
    original.rust.save(str(tmp_path / "tokenizer.json"))
    found = BatchTokenizer(SavedTokenizer.load(tmp_path, original.settings()), 40)
    for texts in (TEXTS, PAIRS):
        for text, tokens in zip(texts, found(texts), strict=True):
            pair = (text,) if isinstance(text, str) else text
            expected = tokenizer(*pair, truncation=True, max_length=20)
            assert list(tokens.ids) == expected["input_ids"]
            assert tokens.types == (expected["token_type_ids"] if types else None)


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CannotLoad, match="export the model again"):
        SavedTokenizer.load(tmp_path, {})


@pytest.mark.parametrize("option", [{"device": "cpu"}, {"autocast": "bfloat16"}, {"revision": "main"}])
def test_options_that_onnx_runtime_lacks_are_refused(exported: Path, option: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(option))):
        Classifier.from_pretrained(exported, **option)


@pytest.mark.parametrize(
    "columns",
    [
        {"text": TEXTS, "label": [0, 1, 2, 0, 1, 2, 0]},
        {"text": [a for a, _ in PAIRS], "text_pair": [b for _, b in PAIRS]},
        {"input_ids": [[2, 5, 3, 1], [2, 3, 1, 1]], "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0]]},
    ],
)
def test_a_classifier_collects_the_trace_of_its_model(
    saved: Path, any_runtime: Path, tokenizer: PreTrainedTokenizerFast, columns: dict[str, Any]
) -> None:
    model, dataset = ExitModel.from_pretrained(saved), Dataset.from_dict(columns)
    expected = collect(model, dataset, tokenizer, metrics=("acc",), data="made up", progress=False)
    classifier = Classifier.from_pretrained(any_runtime, window=2)
    trace = collect(classifier, dataset, metrics=("acc",), data="made up", progress=False)
    np.testing.assert_allclose(trace.logits, expected.logits, atol=1e-4)
    for name in ("labels", "lengths", "ids"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(expected, name))
    for name in ("layers", "label_names", "metrics", "fingerprint", "data", "precision", "shape"):
        assert getattr(trace, name) == getattr(expected, name), name
    assert trace.runtime.startswith("torch" if any_runtime == saved else "onnxruntime")


def test_a_certificate_records_runtime_and_precision_and_warns_in_another(saved: Path) -> None:
    fast = export(saved, saved.parent / "int8", "int8")
    dataset = Dataset.from_dict({"text": ["good film", "bad", "a b"] * 40})
    trace = collect(Classifier.from_pretrained(fast), dataset, progress=False)
    policy = calibrate(trace, "confidence", Guarantee(epsilon=0.9, delta=0.2)).policy
    assert policy.certificate is not None
    assert policy.certificate.conditions.precision == "int8"
    assert policy.certificate.conditions.runtime.startswith("onnxruntime")
    Classifier.from_pretrained(fast, policy)
    with pytest.warns(CertificateMismatch, match=r"precision int8 \(here: fp32\)"):
        Classifier.from_pretrained(saved, policy)


def test_a_stored_rule_that_learns_decides_as_on_the_trace(any_runtime: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(any_runtime, tmp_path / "model"))
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice([*"abcdefghij"], draw.integers(1, 12))) for _ in range(60)]
    classifier = Classifier.from_pretrained(folder, threads=1)
    logits, _ = classifier.runner.engine.trace(classifier.runner.tokenizer(texts))
    layers = classifier.runner.runtime.info.exits
    ids = np.arange(len(texts))
    rule = Agreement.fit(Trace(logits, layers, labels=None, lengths=ids + 1, ids=ids))
    observed = np.unique(fold(rule, logits, layers=layers).readiness)
    gaps = np.diff(observed)
    for low in np.flatnonzero(gaps > 1e-3)[::8]:  # float noise decides nothing there
        policy = Policy(rule, float(observed[low] + gaps[low] / 2))
        store_policy(folder, policy)
        loaded = Classifier.from_pretrained(folder, threads=1)
        assert loaded.runner.policy == policy
        np.testing.assert_array_equal(loaded.runner.decide(texts).exits, policy.exits(logits, layers=layers))
