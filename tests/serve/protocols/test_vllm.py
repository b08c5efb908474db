"""vLLM's /classify."""

from collections.abc import Callable
from typing import Any

import pytest

from offramp.inference import Classifier

Served = Callable[[str], Any]
TEXTS = ["good film", "bad bad bad"]


def test_probabilities_come_in_the_order_of_the_labels(server: Any, classifier: Classifier) -> None:
    found = server.client.post("/classify", json={"input": TEXTS}).json()
    for index, (each, expected) in enumerate(zip(found["data"], classifier.predict(TEXTS), strict=True)):
        assert (each["index"], each["label"], each["num_classes"]) == (index, expected.label, 3)
        assert each["probs"] == pytest.approx([*expected.probabilities.values()], abs=1e-5)
    assert found["usage"]["prompt_tokens"] == sum(
        len(each.ids) for each in classifier.runner.tokenizer(TEXTS)
    )


def test_probabilities_of_a_multi_label_model_are_sigmoids(served: Served) -> None:
    server = served("multi_label")
    (found,) = server.client.post("/classify", json={"input": "good"}).json()["data"]
    expected = Classifier(server.batcher.runner).predict("good").probabilities
    assert found["probs"] == pytest.approx([*expected.values()], abs=1e-5)


def test_without_activation_the_probabilities_are_logits(server: Any, classifier: Classifier) -> None:
    (found,) = server.client.post("/classify", json={"input": "good", "use_activation": False}).json()["data"]
    assert found["probs"] == pytest.approx(classifier.predict("good").logits, abs=1e-5)


def test_inputs_get_all_labels_with_scores_that_sum_to_one(server: Any, classifier: Classifier) -> None:
    """What vLLM's Semantic Router asks of an external classifier."""
    found = server.client.post("/classify", json={"inputs": "good film"}).json()
    expected = classifier.predict("good film").probabilities
    assert {each["label"]: each["score"] for each in found} == pytest.approx(expected, abs=1e-5)
    assert sum(each["score"] for each in found) == pytest.approx(1)
    assert [each["score"] for each in found] == sorted(expected.values(), reverse=True)


@pytest.mark.parametrize(("truncate", "status"), [(None, 400), (-1, 200), (5, 400)])
def test_a_long_text_is_refused_unless_truncation_is_asked_for(
    server: Any, truncate: int | None, status: int
) -> None:
    body = {"input": "film " * 100, "truncate_prompt_tokens": truncate}
    assert server.client.post("/classify", json=body).status_code == status
