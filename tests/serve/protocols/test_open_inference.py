"""The Open Inference Protocol v2."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from offramp.inference import Classifier, Runner
from offramp.models.exit_model import ExitModel

Served = Callable[[str], Any]
INFER = "/v2/models/colours/infer"
TEXTS = ["good film", "bad bad bad"]


def tensor(name: str, data: list[Any], **changes: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": data} | changes


def by_name(response: Any) -> dict[str, Any]:
    return {each["name"]: each["data"] for each in response.json()["outputs"]}


def packed(texts: list[str]) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


@pytest.mark.parametrize("data", [TEXTS, [[text] for text in TEXTS]])
def test_outputs_are_the_classifiers(server: Any, classifier: Classifier, data: list[Any]) -> None:
    shape = [2, 1] if isinstance(data[0], list) else [2]
    found = by_name(server.client.post(INFER, json={"inputs": [tensor("text", data, shape=shape)]}))
    expected = classifier.predict(TEXTS)
    assert found["label"] == [each.label for each in expected]
    assert found["layer"] == [each.layer for each in expected]
    assert found["score"] == pytest.approx([each.score for each in expected], abs=1e-5)
    every = [chance for each in expected for chance in each.probabilities.values()]
    assert found["probabilities"] == pytest.approx(every, abs=1e-5)


def test_a_second_tensor_makes_pairs(server: Any, classifier: Classifier) -> None:
    inputs = [tensor("text_pair", TEXTS[::-1]), tensor("text", TEXTS)]
    found = by_name(server.client.post(INFER, json={"inputs": inputs}))
    expected = classifier.predict([*zip(TEXTS, TEXTS[::-1], strict=True)])
    assert found["score"] == pytest.approx([each.score for each in expected], abs=1e-5)


def test_parameters_choose_where_texts_exit(server: Any) -> None:
    for parameters, layers in [({"policy": "never"}, [4, 4]), ({"policy": "never", "max_layer": 2}, [2, 2])]:
        response = server.client.post(
            INFER, json={"inputs": [tensor("text", TEXTS)], "parameters": parameters}
        )
        assert by_name(response)["layer"] == layers
        assert response.json()["parameters"]["policy"].startswith("never")
        assert "rung" not in response.json()["parameters"]
    late = {"inputs": [tensor("text", TEXTS)], "parameters": {"policy": "never", "deadline_ms": 0.0001}}
    assert by_name(server.client.post(INFER, json=late))["layer"] == [0, 0]


def test_binary_tensors_come_and_go(server: Any, classifier: Classifier) -> None:
    data = packed(TEXTS)
    request = {
        "inputs": [
            {
                "name": "text",
                "shape": [2],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(data)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    response = server.client.post(INFER, content=head + data, headers=headers)
    assert response.status_code == 200, response.text
    length = int(response.headers["inference-header-content-length"])
    rest = response.content[length:]
    found = {}
    for output in json.loads(response.content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]], rest = rest[:size], rest[size:]
    assert rest == b""
    expected = classifier.predict(TEXTS)
    assert found["label"] == packed([str(each.label) for each in expected])
    assert np.frombuffer(found["layer"], "<i4").tolist() == [each.layer for each in expected]
    assert np.frombuffer(found["score"], "<f4") == pytest.approx([each.score for each in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("size", "data", "reason"),
    [
        (6, packed(["ab"]) + b"x", "1 bytes follow"),
        (8, packed(["ab"]), "ends too early"),
        (6, struct.pack("<I", 9) + b"ab", "longer than the tensor"),
        (6, struct.pack("<I", 2) + b"\xff\xff", "element 0"),
        (3, b"\x01\x00\x00", "element 0"),
        (12, packed(["ab"]) * 2, "2 elements"),
    ],
)
def test_damaged_binary_tensors_are_refused(server: Any, size: int, data: bytes, reason: str) -> None:
    described = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [described]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    response = server.client.post(INFER, content=head + data, headers=headers)
    assert response.status_code == 400
    assert reason in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"inputs": []}, "`text` is missing"),
        ({"inputs": [tensor("words", TEXTS)]}, "unexpected input 'words'"),
        ({"inputs": [tensor("text", TEXTS)] * 2}, "unexpected input 'text'"),
        ({"inputs": [tensor("text", TEXTS, datatype="FP32")]}, "not BYTES"),
        ({"inputs": [tensor("text", TEXTS, shape=[3])]}, "2 elements"),
        ({"inputs": [tensor("text", TEXTS, shape=[1, 2])]}, "shape"),
        ({"inputs": [tensor("text", TEXTS, shape=[-2])]}, "2 elements"),
        ({"inputs": [tensor("text", ["a", 5])]}, "element 1 is int 5"),
        ({"inputs": [tensor("text", [])]}, "no texts"),
        ({"inputs": [tensor("text", TEXTS), tensor("text_pair", ["a"])]}, "differ in length"),
        ({"inputs": [tensor("text", TEXTS)], "outputs": [{"name": "loss"}]}, "no output 'loss'"),
        ({"inputs": [tensor("text", TEXTS)], "parameters": {"policy": "layer:1"}}, "not allowed"),
        ({"inputs": [tensor("text", TEXTS)], "parameters": {"max_layer": 9}}, "9"),
    ],
)
def test_a_bad_request_is_a_400_with_the_cause(server: Any, body: Any, reason: str) -> None:
    response = server.client.post(INFER, json=body)
    assert response.status_code == 400
    assert reason in response.json()["error"]


def test_a_length_outside_the_body_is_refused(server: Any) -> None:
    for length in ("99999", "-1", "x", "²", "9" * 5000):
        headers = {"Inference-Header-Content-Length": length.encode()}
        assert server.client.post(INFER, content=b"{}", headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        ("reranker", {"score": [-1], "layer": [-1]}),
        ("multi_label", {"probabilities": [-1, 3], "layer": [-1]}),
    ],
)
def test_outputs_depend_on_the_kind_of_problem(served: Served, model: str, outputs: dict[str, Any]) -> None:
    client = served(model).client
    described = client.get("/v2/models/colours").json()["outputs"]
    assert {each["name"]: each["shape"] for each in described} == outputs
    found = client.post(INFER, json={"inputs": [tensor("text", TEXTS)]})
    assert set(by_name(found)) == set(outputs)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/colours/ready"])
def test_probes_answer_get_and_head(server: Any, path: str) -> None:
    assert server.client.get(path).status_code == 200
    head = server.client.head(path)
    assert (head.status_code, head.content) == (200, b"")


def test_a_model_with_nan_is_not_ready_and_gives_no_numbers(
    serve: Callable[..., Any], make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(num_labels=3)
    with torch.no_grad():
        model.heads.classifiers[-1].weight[0, 0] = float("nan")
    client = serve(Classifier(Runner(model, tokenizer))).client
    assert client.get("/v2/health/live").status_code == 200
    for path in ("/v2/health/ready", "/v2/models/colours/ready"):
        assert client.get(path).status_code == 503
        assert client.get(path).json()["error"]
    failed = client.post(INFER, json={"inputs": [tensor("text", TEXTS)]})
    assert failed.status_code == 500
    assert "item 0" in failed.json()["error"]


def test_another_model_or_version_is_unknown(server: Any) -> None:
    assert server.client.get("/v2/models/other").status_code == 404
    assert server.client.get("/v2/models/other/ready").status_code == 404
    assert server.client.get("/v2/models/colours/versions/2").status_code == 400
    assert server.client.get("/v2/models/colours/versions/1").status_code == 200


def test_a_lone_surrogate_in_the_id_is_replaced(server: Any) -> None:
    body = json.dumps({"id": "x\ud800", "inputs": [tensor("text", TEXTS)]})  # escaped
    response = server.client.post(INFER, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200
    assert response.json()["id"] == "x\ufffd"
