"""Requests and responses as the documentation of each protocol shows them: ours have the same fields and types."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Served = Callable[[str], Any]

INFO = {
    "model_id": "SamLowe/roberta-base-go_emotions",
    "model_sha": None,
    "model_dtype": "float16",
    "served_model_name": "emotions",
    "model_type": {"classifier": {"id2label": {"0": "admiration"}, "label2id": {"admiration": 0}}},
    "max_concurrent_requests": 512,
    "max_input_length": 512,
    "max_batch_tokens": 16384,
    "max_batch_requests": 8,
    "max_client_batch_size": 32,
    "auto_truncate": True,
    "tokenization_workers": 4,
    "version": "1.9.3",
}
EMOTIONS = [
    {"score": 0.9, "label": "admiration"},
    {"score": 0.06, "label": "love"},
    {"score": 0.04, "label": "joy"},
]
USAGE = {"prompt_tokens": 10, "total_tokens": 10, "completion_tokens": 0, "prompt_tokens_details": None}
RESULTS = [
    {"index": 1, "document": {"text": "The capital of France is Paris."}, "relevance_score": 0.99},
    {"index": 0, "document": {"text": "The capital of Brazil is Brasilia."}, "relevance_score": 0.0005},
]
VLLM_RERANK = {
    "id": "rerank-fae51b2b664d4ed38f5969b612edff77",
    "object": "list",
    "model": "BAAI/bge-reranker-base",
    "usage": USAGE,
    "results": RESULTS,
}
COUNTRIES = {
    "model": "colours",
    "query": "What is the capital of France?",
    "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
}
CLASSES = {
    "id": "classify-7c87cac407b749a6935d8c7ce2a8fba2",
    "object": "list",
    "created": 1745383065,
    "model": "jason9693/Qwen2.5-1.5B-apeach",
    "data": [
        {"index": 0, "label": "Default", "probs": [0.5, 0.3, 0.2], "num_classes": 3},
        {"index": 1, "label": "Spoiled", "probs": [0.2, 0.3, 0.5], "num_classes": 3},
    ],
    "usage": USAGE,
}
OPENAI_ERROR = {"error": {"message": "...", "type": "BadRequestError", "param": None, "code": 400}}
RERANK_ERROR = {"message": "...", "detail": "...", **OPENAI_ERROR}
TEI_ERROR = {"error": "Batch size error", "error_type": "Validation"}
TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["good film", "bad"]}
INFERRED = {
    "model_name": "colours",
    "model_version": "1",
    "id": "42",
    "parameters": {"policy": "entropy:0.3", "rung": 0},
    "outputs": [
        {"name": "label", "shape": [2], "datatype": "BYTES", "data": ["x", "y"]},
        {"name": "score", "shape": [2], "datatype": "FP32", "data": [0.9, 0.8]},
        {"name": "probabilities", "shape": [2, 3], "datatype": "FP32", "data": [0.9, 0.1, 0.0] * 2},
        {"name": "layer", "shape": [2], "datatype": "INT32", "data": [4, 6]},
    ],
}
METADATA = {
    "name": "colours",
    "versions": ["1"],
    "platform": "onnx_onnxv1",
    "inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
        {"name": "text_pair", "datatype": "BYTES", "shape": [-1]},
    ],
    "outputs": [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "score", "datatype": "FP32", "shape": [-1]},
        {"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "layer", "datatype": "INT32", "shape": [-1]},
    ],
    "parameters": {"labels": "[]"},
}

# model, path, body (None for GET), status, response
RECORDED: dict[str, tuple[str, str, Any, int, Any]] = {
    "tei predict": ("colours", "/predict", {"inputs": "I like you."}, 200, EMOTIONS),
    "tei pair": ("colours", "/predict", {"inputs": ["I like you.", "I like pineapples"]}, 200, EMOTIONS),
    "tei batch": (
        "colours",
        "/predict",
        {"inputs": [["I like you."], ["I like you.", "I like pineapples"]]},
        200,
        [EMOTIONS, EMOTIONS],
    ),
    "tei default route": ("colours", "/", {"inputs": "I like you."}, 200, EMOTIONS),
    "sagemaker": ("colours", "/invocations", {"inputs": "I like you."}, 200, EMOTIONS),
    "sagemaker rerank": (
        "reranker",
        "/invocations",
        {"query": "What is Deep Learning?", "texts": ["Deep Learning is ..."]},
        200,
        [{"index": 0, "score": 0.99}],
    ),
    "hugging face": (
        "colours",
        "/",
        {"inputs": "I like you.", "parameters": {"top_k": 2}},
        200,
        [EMOTIONS[:2]],
    ),
    "tei rerank": (
        "reranker",
        "/rerank",
        {
            "query": "What is Deep Learning?",
            "texts": ["Deep Learning is not...", "Deep learning is..."],
            "raw_scores": False,
        },
        200,
        [{"index": 1, "score": 0.94}, {"index": 0, "score": 0.08}],
    ),
    "tei rerank with texts": (
        "reranker",
        "/rerank",
        {"query": "What is Deep Learning?", "texts": ["Deep Learning is ..."], "return_text": True},
        200,
        [{"index": 0, "text": "Deep Learning is ...", "score": 0.99}],
    ),
    "tei invalid": ("colours", "/predict", {"inputs": ["a", "b", "c"]}, 422, TEI_ERROR),
    "tei empty": (
        "reranker",
        "/rerank",
        {"query": "q", "texts": []},
        400,
        {"error": "", "error_type": "Empty"},
    ),
    "tei not a reranker": (
        "colours",
        "/rerank",
        {"query": "q", "texts": ["a"]},
        424,
        {"error": "", "error_type": "Backend"},
    ),
    "vllm rerank": ("reranker", "/rerank", COUNTRIES, 200, VLLM_RERANK),
    "vllm v1 rerank": ("two_classes", "/v1/rerank", COUNTRIES, 200, VLLM_RERANK),
    "cohere v1": (
        "reranker",
        "/v1/rerank",
        {**COUNTRIES, "top_n": 1, "return_documents": False},
        200,
        {**VLLM_RERANK, "results": [{"index": 1, "relevance_score": 0.9}]},
    ),
    "cohere v2": (
        "reranker",
        "/v2/rerank",
        {**COUNTRIES, "top_n": 5, "max_tokens_per_doc": 4096},
        200,
        VLLM_RERANK,
    ),
    "jina": (
        "reranker",
        "/v1/rerank",
        {**COUNTRIES, "documents": [{"text": each} for each in COUNTRIES["documents"]]},
        200,
        VLLM_RERANK,
    ),
    "cohere invalid": ("reranker", "/v2/rerank", {**COUNTRIES, "documents": []}, 400, RERANK_ERROR),
    "cohere unknown model": ("reranker", "/v2/rerank", {**COUNTRIES, "model": "other"}, 404, RERANK_ERROR),
    "vllm not a reranker": ("multi_label", "/v1/rerank", COUNTRIES, 400, RERANK_ERROR),
    "vllm classify": ("colours", "/classify", {"model": "colours", "input": ["a", "b"]}, 200, CLASSES),
    "vllm classify one": (
        "colours",
        "/classify",
        {"input": "a"},
        200,
        {**CLASSES, "data": CLASSES["data"][:1]},
    ),
    "vllm invalid": ("colours", "/classify", {"model": "colours", "input": [[1, 2]]}, 400, OPENAI_ERROR),
    "vllm unknown model": ("colours", "/classify", {"model": "other", "input": "a"}, 404, OPENAI_ERROR),
    "v2 live": ("colours", "/v2/health/live", None, 200, {"live": True}),
    "v2 ready": ("colours", "/v2/health/ready", None, 200, {"ready": True}),
    "v2 server": ("colours", "/v2", None, 200, {"name": "triton", "version": "2", "extensions": ["x"]}),
    "v2 model": ("colours", "/v2/models/colours", None, 200, METADATA),
    "v2 model ready": ("colours", "/v2/models/colours/ready", None, 200, {"name": "colours", "ready": True}),
    "v2 infer": ("colours", "/v2/models/colours/infer", {"id": "42", "inputs": [TENSOR]}, 200, INFERRED),
    "v2 infer a version": (
        "colours",
        "/v2/models/colours/versions/1/infer",
        {"id": "42", "inputs": [TENSOR], "parameters": {"max_layer": 2}, "outputs": [{"name": "layer"}]},
        200,
        {**INFERRED, "outputs": INFERRED["outputs"][-1:]},
    ),
    "v2 invalid": ("colours", "/v2/models/colours/infer", {"inputs": []}, 400, {"error": ""}),
    "v2 unknown model": ("colours", "/v2/models/other/infer", {"inputs": [TENSOR]}, 404, {"error": ""}),
}


def shape(value: Any) -> Any:
    """The fields and types of a JSON value; in a list, of each item."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_request_gets_a_response_of_the_recorded_shape(served: Served, name: str) -> None:
    model, path, body, status, recorded = RECORDED[name]
    client = served(model).client
    response = client.get(path) if body is None else client.post(path, json=body)
    assert response.status_code == status, response.text
    assert shape(response.json()) == shape(recorded)


def test_info_has_the_fields_of_tei(served: Served) -> None:
    found = served("colours").client.get("/info").json()
    ours = {name: found[name] for name in INFO}
    labels = ours["model_type"].pop("classifier")
    assert shape(ours | {"model_type": {}}) == shape(INFO | {"model_type": {}})
    assert labels["id2label"] == {"0": "red", "1": "green", "2": "blue"}
    assert labels["label2id"] == {"red": 0, "green": 1, "blue": 2}
    assert list(served("reranker").client.get("/info").json()["model_type"]) == ["reranker"]


PATHS = ["/predict", "/", "/invocations", "/rerank", "/v1/rerank", "/classify", "/v2/models/colours/infer"]
FIELDS = [
    "inputs",
    "texts",
    "query",
    "documents",
    "input",
    "parameters",
    "outputs",
    "truncate",
    "top_n",
    "model",
]
JUNK = [
    None,
    0,
    -1,
    1.5,
    True,
    "",
    "a",
    [],
    [[]],
    ["a", 5],
    [["a", "b", "c"]],
    {},
    {"name": 5},
    [{"name": "text"}],
]


@pytest.mark.parametrize("path", PATHS)
def test_no_body_makes_the_server_fail(served: Served, path: str) -> None:
    client = served("reranker").client
    bodies = [
        json.dumps(each).encode() for each in [*JUNK, *({name: each} for name in FIELDS for each in JUNK)]
    ]
    pairs = [{"query": "q", "texts": each, "documents": each, "inputs": each, "input": each} for each in JUNK]
    for body in [b"", b"{", b"\xff", *bodies, *(json.dumps(each).encode() for each in pairs)]:
        response = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code in (200, 400, 404, 422, 424), (body, response.text)
        assert response.json()
