"""Classifier: texts in, predictions out."""

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import make_certificate
from scipy.special import expit, softmax
from transformers import PreTrainedTokenizerFast

from offramp.errors import (
    BadData,
    BadOption,
    BadPolicy,
    CannotLoad,
    CertificateMismatch,
    Incompatible,
)
from offramp.inference import Classifier, Prediction, Runner
from offramp.models.exit_model import ExitModel
from offramp.policy import Policy
from offramp.rules.confidence import Entropy

TEXTS = ["good film", "bad", "", "a b c d e", "z", "good good bad", "q r s", "film", "c a b", "unheard of"]


def logits_of(model: ExitModel, tokenizer: PreTrainedTokenizerFast, *text: str) -> np.ndarray:
    """(exits, labels) by transformers' own tokenizer and the model's forward."""
    with torch.inference_mode():
        output = model(**tokenizer(*text, return_tensors="pt"))
    return output.exit_logits[0].numpy()


def assert_alike(left: list[Prediction], right: list[Prediction]) -> None:
    for one, other in zip(left, right, strict=True):
        assert (one.label, one.layer) == (other.label, other.layer)
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_predictions_are_those_of_the_exit_that_the_policy_takes(
    classifier: Classifier, make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(labels=["red", "green", "blue"])
    layers = set()
    for text, prediction in zip(TEXTS, classifier.predict(TEXTS), strict=True):
        logits = logits_of(model, tokenizer, text)
        exit = int(Policy.parse("confidence:0.775").exits(logits[None])[0])
        chances = softmax(logits[exit])
        assert prediction.layer == exit
        assert prediction.layers == 4
        assert prediction.label == ["red", "green", "blue"][chances.argmax()]
        assert prediction.score == pytest.approx(chances.max(), abs=1e-5)
        assert [*prediction.probabilities] == ["red", "green", "blue"]
        assert [*prediction.probabilities.values()] == pytest.approx(chances.tolist(), abs=1e-5)
        assert prediction.finite
        layers.add(prediction.layer)
    assert len(layers) >= 3


def test_one_text_a_list_and_a_stream_agree(classifier: Classifier) -> None:
    several = classifier.predict(TEXTS)
    stream = classifier.predict(iter(TEXTS))
    assert isinstance(stream, Iterator)
    assert_alike(several, [*stream])
    assert_alike(several, [classifier.predict(text) for text in TEXTS])


def test_pairs_are_tokenized_as_pairs(
    classifier: Classifier, make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    logits = logits_of(make_model(labels=["red", "green", "blue"]), tokenizer, "good film", "bad")
    one = classifier.predict(("good film", "bad"), policy="never")
    assert one.score == pytest.approx(softmax(logits[-1]).max(), abs=1e-5)
    (listed,) = classifier.predict([("good film", "bad")], policy="never")
    assert_alike([listed], [one])


def test_a_prediction_is_immutable(classifier: Classifier) -> None:
    prediction = classifier.predict("good")
    with pytest.raises(FrozenInstanceError):
        prediction.label = "other"  # type: ignore[misc]


def test_no_texts_give_no_predictions(classifier: Classifier) -> None:
    assert classifier.predict([]) == []
    assert [*classifier.predict(iter([]))] == []


def test_a_stream_is_read_a_window_at_a_time(classifier: Classifier) -> None:
    read = []

    def source() -> Iterator[str]:
        for index in range(1000):
            read.append(index)
            yield "good film"

    stream = classifier.predict(source())
    assert read == []
    next(stream)
    assert len(read) == classifier.runner.engine.window


def test_a_bad_item_in_a_list_raises_before_anything_runs(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifier.runner.engine, "run", None)
    with pytest.raises(BadData, match="item 9 is NoneType"):
        classifier.predict([*TEXTS[:9], None])


def test_a_bad_item_in_a_stream_raises_after_the_predictions_before_it(classifier: Classifier) -> None:
    seen: list[Prediction] = []
    stream = classifier.predict(iter([*TEXTS[:6], 7, "good"]))
    with pytest.raises(BadData, match="item 6 is int 7"):
        seen.extend(stream)
    assert [prediction.label for prediction in seen] == [p.label for p in classifier.predict(TEXTS[:6])]


@pytest.mark.parametrize("odd", ["", " ", "\n", "a", "\ud800", "\x00", "x" * 1_000_000, "a " * 500_000])
def test_odd_texts_get_a_prediction(classifier: Classifier, odd: str) -> None:
    assert classifier.predict(odd).label in ("red", "green", "blue")


def test_the_policy_may_change_from_call_to_call(classifier: Classifier) -> None:
    assert {p.layer for p in classifier.predict(TEXTS, policy="never")} == {4}
    assert {p.layer for p in classifier.predict(TEXTS, policy=Policy.parse("layer:2"))} == {2}
    assert max(p.layer for p in classifier.predict(TEXTS, max_layer=2)) == 2
    assert max(p.layer for p in classifier.predict(TEXTS, policy="never,max_layer=3", max_layer=4)) == 3


def test_a_passed_deadline_predicts_from_the_first_exit(classifier: Classifier) -> None:
    for prediction in classifier.predict(TEXTS, policy="never", deadline_ms=-1):
        assert prediction.layer == 0
        assert prediction.label in ("red", "green", "blue")
    assert classifier.predict("good", policy="never", deadline_ms=1e6).layer == 4


def test_trace_adds_the_prediction_of_every_exit(
    classifier: Classifier, make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(labels=["red", "green", "blue"])
    for text in TEXTS:
        prediction, plain = classifier.predict(text, every_exit=True), classifier.predict(text)
        assert (prediction.label, prediction.layer) == (plain.label, plain.layer)
        assert [exit.layer for exit in prediction.exits] == [0, 1, 2, 3, 4]
        taken = prediction.exits[prediction.layer]
        assert_alike([taken], [prediction])
        for exit, logits in zip(prediction.exits, logits_of(model, tokenizer, text), strict=True):
            assert [*exit.probabilities.values()] == pytest.approx(softmax(logits).tolist(), abs=1e-5)
    assert classifier.predict("good").exits == ()


def test_multi_labels_are_those_above_one_half(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(labels=["x", "y", "z"], problem_type="multi_label_classification")
    predictions = Classifier(Runner(model, tokenizer, "layer:2")).predict(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        chances = expit(logits_of(model, tokenizer, text)[2])
        assert prediction.label == tuple(n for n, c in zip("xyz", chances, strict=True) if c > 0.5)
        assert prediction.score == pytest.approx(np.maximum(chances, 1 - chances).min(), abs=1e-5)
        assert [*prediction.probabilities.values()] == pytest.approx(chances.tolist(), abs=1e-5)
    assert len({prediction.label for prediction in predictions}) > 1


def test_a_regression_predicts_a_value(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(num_labels=1)
    prediction = Classifier(Runner(model, tokenizer)).predict("good film")
    assert prediction.score == pytest.approx(logits_of(model, tokenizer, "good film")[-1, 0], abs=1e-5)
    assert prediction.label is None
    assert prediction.probabilities == {}
    with pytest.raises(Incompatible, match="patience:3,tolerance"):
        Classifier(Runner(model, tokenizer, "entropy:0.3")).predict("good film")


def test_nan_is_flagged_and_has_no_label(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(num_labels=2)
    for parameter in model.backbone.parameters():
        parameter.data.fill_(torch.nan)
    prediction = Classifier(Runner(model, tokenizer, "confidence:0.5")).predict("good film")
    assert prediction.label is None
    assert np.isnan(prediction.score)
    assert not prediction.finite
    assert prediction.layer == prediction.layers


def test_threads_share_a_classifier(classifier: Classifier) -> None:
    policies = ["never", "confidence:0.775", "patience:1", "entropy:0.8"]
    alone = {policy: classifier.predict(TEXTS, policy=policy) for policy in policies}
    together: dict[str, list[Prediction]] = {}

    def work(policy: str) -> None:
        for _ in range(5):
            together[policy] = classifier.predict(TEXTS, policy=policy)

    threads = [threading.Thread(target=work, args=(policy,)) for policy in policies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for policy in policies:
        assert_alike(together[policy], alone[policy])


def test_a_saved_model_brings_its_tokenizer_and_policy(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = make_model(labels=["no", "yes"])
    model.config.policy = Policy.parse("confidence:0.7").to_json()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = Classifier.from_pretrained(tmp_path, threads=1)
    expected = Classifier(Runner(model, tokenizer, "confidence:0.7")).predict(TEXTS)
    assert_alike(loaded.predict(TEXTS), expected)
    assert str(Classifier.from_pretrained(tmp_path, "patience:1").runner.policy) == "patience:1"


def test_a_certificate_for_another_model_or_policy_warns(
    make_model: Callable[..., ExitModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
) -> None:
    model = make_model(labels=["no", "yes"])
    tokenizer.save_pretrained(tmp_path)

    def load(**changes: str) -> None:
        certificate = make_certificate(**{"fingerprint": model.fingerprint()} | changes)
        model.config.policy = Policy(Entropy(), 0.3, certificate=certificate).to_json()
        model.save_pretrained(tmp_path)
        Classifier.from_pretrained(tmp_path)

    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateMismatch)
        load()
    for name in ("policy", "fingerprint", "precision"):
        with pytest.warns(CertificateMismatch, match=f"{name} another"):
            load(**{name: "another"})


def test_load_errors_give_the_reason(tiny_encoder: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="nowhere"):
        Classifier.from_pretrained(tmp_path / "nowhere")
    tiny_encoder("bert").save_pretrained(tmp_path)
    with pytest.raises(CannotLoad, match="without exits"):
        Classifier.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "entropi:0.3"}, BadPolicy, "entropy"),
        ({"policy": "layer:9"}, Incompatible, "exits are at"),
        ({"max_layer": 7}, Incompatible, "max_layer=7"),
        ({"policy": "gate:0.5"}, Incompatible, "gate"),
        ({"every_exit": True, "deadline_ms": 5}, BadOption, "deadline"),
    ],
)
def test_bad_options_are_named(
    classifier: Classifier, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        classifier.predict(TEXTS, **options)


def test_texts_are_truncated_at_max_length(make_model: Any, tokenizer: Any) -> None:
    model = make_model()
    short = Classifier(Runner(model, tokenizer, max_length=8)).predict("good bad film " * 9)
    assert short == Classifier(Runner(model, tokenizer)).predict("good bad film good bad film")
    with pytest.raises(BadOption, match="at least 8"):
        Classifier(Runner(model, tokenizer, max_length=2))
