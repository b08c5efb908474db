"""Clients that people use for other servers, against this one."""

from collections.abc import Callable
from typing import Any

import cohere
import huggingface_hub
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from offramp.inference import Classifier

Served = Callable[[str], Any]
DOCUMENTS = ["bad bad", "a good film", "b c"]


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run offline, where the client refuses even this machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("path", ["", "/predict", "/invocations"])
def test_hugging_faces_client_classifies(server: Any, classifier: Classifier, path: str) -> None:
    client = huggingface_hub.InferenceClient(model=f"{server.url}{path}")
    found = client.text_classification("good film")
    expected = classifier.predict("good film").probabilities
    assert {each.label: each.score for each in found} == pytest.approx(expected, abs=1e-5)
    assert found[0].label == max(expected, key=lambda label: expected[label])
    (best,) = client.text_classification("good film", top_k=1, function_to_apply="none")
    assert best.score == pytest.approx(max(classifier.predict("good film").logits), abs=1e-5)


@pytest.mark.parametrize("kind", [cohere.Client, cohere.ClientV2])
def test_coheres_client_reranks(served: Served, kind: Any) -> None:
    server = served("reranker")
    client = kind(api_key="none", base_url=server.url)
    found = client.rerank(model="colours", query="good film", documents=DOCUMENTS, top_n=2)
    tei = server.client.post("/rerank", json={"query": "good film", "texts": DOCUMENTS}).json()
    assert [(each.index, each.relevance_score) for each in found.results] == [
        (each["index"], pytest.approx(each["score"], abs=1e-5)) for each in tei[:2]
    ]
    with pytest.raises(cohere.NotFoundError, match="not served here"):
        client.rerank(model="rerank-v3.5", query="good film", documents=DOCUMENTS)
    with pytest.raises(cohere.BadRequestError):
        client.rerank(model="colours", query="good film", documents=[])


@pytest.mark.parametrize("binary", [False, True])
def test_tritons_client_infers(server: Any, classifier: Classifier, binary: bool) -> None:
    texts = ["good film", "bad"]
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("colours")
        assert client.get_server_metadata()["name"] == "offramp"
        assert [each["name"] for each in client.get_model_metadata("colours")["inputs"]] == [
            "text",
            "text_pair",
        ]
        sent = triton.InferInput("text", [2], "BYTES")
        sent.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
        names = ["label", "score", "layer"]
        asked = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
        for outputs in (asked, None):
            found = client.infer("colours", [sent], outputs=outputs, parameters={"policy": "never"})
            labels = [
                getattr(label, "decode", lambda label=label: label)() for label in found.as_numpy("label")
            ]
            expected = classifier.predict(texts, policy="never")
            assert labels == [each.label for each in expected]
            assert found.as_numpy("score") == pytest.approx([each.score for each in expected], abs=1e-5)
            assert found.as_numpy("layer").tolist() == [4, 4]
        with pytest.raises(InferenceServerException, match="not served here"):
            client.infer("other", [sent])
