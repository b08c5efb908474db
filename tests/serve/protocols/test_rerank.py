"""Reranking: pairs of a query and a document, best first, in the protocols of TEI and Cohere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from offramp.inference import Classifier, Runner
from offramp.models.exit_model import ExitModel

Served = Callable[[str], Any]

QUERY = "good film"
DOCUMENTS = ["bad bad", "a good film", "b c", "good good good film", ""]


def logits(classifier: Classifier) -> list[float]:
    """The logit of each document being relevant."""
    found = [each.logits for each in classifier.predict([(QUERY, document) for document in DOCUMENTS])]
    return [row[-1] - sum(row[:-1]) for row in found]


@pytest.mark.parametrize("model", ["reranker", "two_classes"])
@pytest.mark.parametrize("raw", [False, True])
def test_scores_are_those_of_the_pairs_best_first(served: Served, model: str, raw: bool) -> None:
    server = served(model)
    expected = np.array(logits(Classifier(server.batcher.runner)))
    scores = expected if raw else 1 / (1 + np.exp(-expected))
    order = np.argsort(-expected).tolist()
    tei = server.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": raw}).json()
    cohere = server.client.post(
        "/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, "use_activation": not raw}
    ).json()["results"]
    assert [each["index"] for each in tei] == [each["index"] for each in cohere] == order
    assert [each["score"] for each in tei] == pytest.approx(scores[order], abs=1e-5)
    assert [each["relevance_score"] for each in cohere] == pytest.approx(scores[order], abs=1e-5)
    assert [each["document"]["text"] for each in cohere] == [DOCUMENTS[index] for index in order]


def test_two_classes_score_the_probability_of_the_second(served: Served) -> None:
    server = served("two_classes")
    (found,) = server.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS[:1]}).json()
    expected = Classifier(server.batcher.runner).predict((QUERY, DOCUMENTS[0])).probabilities["relevant"]
    assert found["score"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("top_n", "results"), [(None, 5), (0, 5), (2, 2), (50, 5)])
def test_top_n_limits_the_results(served: Served, top_n: int | None, results: int) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": top_n, "return_documents": False}
    found = served("reranker").client.post("/v2/rerank", json=body).json()["results"]
    assert len(found) == results
    assert all(set(each) == {"index", "relevance_score"} for each in found)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query": " "}, "query is empty"),
        ({"query": 5}, "query is int 5"),
        ({"documents": []}, "list is empty"),
        ({"documents": ["a", 5]}, "document 1 is int 5"),
        ({"documents": ["a", {"title": "b"}]}, "document 1 is NoneType"),
        ({"documents": ["a", ["b", "c"]]}, "document 1 is list"),
        ({"top_n": -1}, "top_n"),
        ({"rank_fields": ["title"]}, "rank_fields"),
    ],
)
def test_a_bad_request_names_the_cause(served: Served, change: dict[str, Any], reason: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS} | change
    response = served("reranker").client.post("/v1/rerank", json=body)
    assert response.status_code == 400
    assert reason in response.json()["message"]


def test_lone_surrogates_are_replaced(served: Served) -> None:
    client = served("reranker").client
    for path, field, echo in [("/rerank", "texts", "text"), ("/v1/rerank", "documents", "document")]:
        body = f'{{"query": "q \\ud800", "{field}": ["a \\ud800"], "return_text": true}}'
        response = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 200
        (found,) = response.json() if path == "/rerank" else response.json()["results"]
        assert found[echo] in ("a �", {"text": "a �"})


def test_not_a_number_is_an_error_that_names_the_document(
    serve: Callable[..., Any], make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(num_labels=1)
    with torch.no_grad():  # only texts with the word "bad" meet it
        model.backbone.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids("bad")] = float(
            "nan"
        )
    server = serve(Classifier(Runner(model, tokenizer)))
    tei = server.client.post("/rerank", json={"query": QUERY, "texts": ["good", "bad"]})
    assert (tei.status_code, tei.json()["error_type"]) == (424, "Backend")
    assert "item 1" in tei.json()["error"]
    cohere = server.client.post("/v1/rerank", json={"query": QUERY, "documents": ["good", "bad"]})
    assert cohere.status_code == 500
    assert server.client.post("/rerank", json={"query": QUERY, "texts": ["good"]}).status_code == 200
