"""text-embeddings-inference's /predict, and the Hugging Face Inference API on top of it."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from offramp.errors import Overloaded
from offramp.inference import Classifier, Prediction
from offramp.serve.batcher import Limits

Served = Callable[[str], Any]
Serve = Callable[..., Any]

SINGLES = ["good film", "", "bad bad bad"]
MIXED: list[Any] = [["good film"], ["good", "bad film"], ["a b c d e f"]]


def ranked(prediction: Prediction) -> list[dict[str, Any]]:
    best = sorted(prediction.probabilities.items(), key=lambda each: -each[1])
    return [{"label": label, "score": pytest.approx(score, abs=1e-5)} for label, score in best]


def test_all_labels_come_best_first(server: Any, classifier: Classifier) -> None:
    for text in SINGLES:
        for inputs in (text, [text]):
            found = server.client.post("/predict", json={"inputs": inputs}).json()
            assert found == ranked(classifier.predict(text))


def test_a_batch_may_mix_texts_and_pairs(server: Any, classifier: Classifier) -> None:
    found = server.client.post("/predict", json={"inputs": MIXED}).json()
    texts = [each[0] if len(each) == 1 else tuple(each) for each in MIXED]
    assert found == [ranked(classifier.predict(text)) for text in texts]
    assert server.client.post("/predict", json={"inputs": MIXED[1]}).json() == ranked(
        classifier.predict(texts[1])
    )


def test_raw_scores_are_logits(server: Any, classifier: Classifier) -> None:
    found = server.client.post("/predict", json={"inputs": "good", "raw_scores": True}).json()
    logits = dict(zip(classifier.runner.runtime.info.labels, classifier.predict("good").logits, strict=True))
    assert {each["label"]: each["score"] for each in found} == pytest.approx(logits, abs=1e-5)


def test_scores_of_a_multi_label_model_are_sigmoids(served: Served) -> None:
    server = served("multi_label")
    for path, body in [("/predict", {"inputs": "good"}), ("/", {"inputs": "good"})]:
        found = {each["label"]: each["score"] for each in server.client.post(path, json=body).json()}
        expected = Classifier(server.batcher.runner).predict("good")
        assert found == pytest.approx(expected.probabilities, abs=1e-5)
        assert found["red"] == pytest.approx(1 / (1 + np.exp(-expected.logits[0])), abs=1e-5)


def test_the_score_of_a_single_output_is_its_sigmoid(served: Served) -> None:
    server = served("reranker")
    (found,) = server.client.post("/predict", json={"inputs": "good"}).json()
    expected = Classifier(server.batcher.runner).predict("good").score
    assert found["score"] == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-5)


def test_predict_is_ours_or_teis_by_its_field(server: Any) -> None:
    post = server.client.post
    assert "predictions" in post("/predict", json={"texts": "good"}).json()
    assert isinstance(post("/predict", json={"inputs": "good"}).json(), list)
    both = post("/predict", json={"texts": "good", "inputs": "good"})
    assert both.status_code == 422
    assert set(both.json()) == {"error", "id"}
    assert "predictions" in post("/invocations", json={"texts": "good"}).json()


def test_a_long_text_is_truncated_unless_truncate_is_false(server: Any) -> None:
    body = {"inputs": "film " * 100}
    for truncate, status in [(None, 200), (True, 200), (False, 422)]:
        assert server.client.post("/predict", json=body | {"truncate": truncate}).status_code == status
    right, left = (
        server.client.post("/predict", json=body | {"truncation_direction": side})
        for side in ("Right", "Left")
    )
    assert (right.status_code, left.status_code) == (200, 422)
    assert "right only" in left.json()["error"]


@pytest.mark.parametrize("function", ["sigmoid", "softmax", "none"])
def test_parameters_choose_the_function_and_the_number_of_labels(
    server: Any, classifier: Classifier, function: str
) -> None:
    parameters = {"function_to_apply": function, "top_k": 2}
    (found,) = server.client.post("/", json={"inputs": "good", "parameters": parameters}).json()
    logits = np.sort(classifier.predict("good").logits)[::-1]
    exponents = np.exp(logits)
    expected = {
        "sigmoid": 1 / (1 + np.exp(-logits)),
        "softmax": exponents / exponents.sum(),
        "none": logits,
    }
    assert [each["score"] for each in found] == pytest.approx(expected[function][:2], abs=1e-5)


def test_with_parameters_a_list_of_texts_is_a_batch(server: Any, classifier: Classifier) -> None:
    found = server.client.post("/", json={"inputs": SINGLES, "parameters": {}}).json()
    assert found == [ranked(each) for each in classifier.predict(SINGLES)]


def test_refusals_have_teis_statuses_and_types(
    serve: Serve, door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(limits=Limits(items=2))

    def refused(inputs: Any) -> tuple[int, str]:
        response = server.client.post("/predict", json={"inputs": inputs})
        assert {"error", "error_type"} <= set(response.json())
        return response.status_code, response.json()["error_type"]

    assert refused([["a"]] * 3) == (422, "Validation")
    with monkeypatch.context() as full:
        full.setattr(server.batcher, "submit", Mock(side_effect=Overloaded("retry in 3 s.", 3)))
        assert refused("a") == (429, "Overloaded")
    door.fault = RuntimeError("out of memory")
    assert refused("a") == (424, "Backend")
    door.fault = None
    server.batcher.drain(10)
    assert refused("a") == (503, "Unhealthy")


def test_errors_from_before_the_body_is_read_have_the_fields_of_all_protocols_on_the_path(
    server: Any,
) -> None:
    for path, fields in {"/predict": {"error", "error_type", "id"}, "/": {"error", "error_type"}}.items():
        large = server.client.post(path, json={"inputs": "a" * 2**21})
        assert large.status_code == 413
        assert set(large.json()) == fields


def test_ping_reports_readiness(server: Any) -> None:
    assert server.client.get("/ping").status_code == 200
