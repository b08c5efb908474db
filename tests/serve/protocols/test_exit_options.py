"""What all protocols share: options and results of early exits in headers, the key, the limits, metrics and log."""

from collections.abc import Callable
from typing import Any

import pytest

from offramp.inference import Classifier
from offramp.policy import Policy

Serve = Callable[..., Any]
TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["good", "bad"]}
REQUESTS: dict[str, Any] = {
    "/predict": {"inputs": [["good"], ["bad"]]},
    "/": {"inputs": [["good"], ["bad"]]},
    "/invocations": {"inputs": [["good"], ["bad"]]},
    "/rerank": {"query": "film", "texts": ["good", "bad"]},
    "/v1/rerank": {"query": "film", "documents": ["good", "bad"]},
    "/v2/rerank": {"query": "film", "documents": ["good", "bad"]},
    "/classify": {"input": ["good", "bad"]},
    "/v2/models/colours/infer": {"inputs": [TENSOR]},
}
IN_HEADERS = [path for path in REQUESTS if "infer" not in path]


@pytest.fixture(scope="module")
def two_classes(make_classifier: Callable[[str], Classifier]) -> Classifier:
    return make_classifier("two_classes")


@pytest.mark.parametrize("path", REQUESTS)
def test_headers_report_layers_policy_and_rung(serve: Serve, two_classes: Classifier, path: str) -> None:
    server = serve(two_classes, rungs=(Policy.parse("confidence:0.7"),))
    headers = server.client.post(path, json=REQUESTS[path]).headers
    layers = [int(layer) for layer in headers["x-offramp-layers"].split(",")]
    assert len(layers) == 2
    assert float(headers["x-offramp-mean-layer"]) == sum(layers) / 2
    assert (headers["x-offramp-policy"], headers["x-offramp-rung"]) == ("confidence:0.7", "0")


@pytest.mark.parametrize("path", IN_HEADERS)
def test_headers_choose_where_texts_exit(serve: Serve, two_classes: Classifier, path: str) -> None:
    post = serve(two_classes).client.post
    for options, layers in [
        ({"X-Offramp-Policy": "never"}, "4,4"),
        ({"X-Offramp-Policy": "never", "X-Offramp-Max-Layer": "2"}, "2,2"),
        ({"X-Offramp-Policy": "never", "X-Offramp-Deadline-Ms": "0.0001"}, "0,0"),
    ]:
        response = post(path, json=REQUESTS[path], headers=options)
        assert response.headers["x-offramp-layers"] == layers
        assert "x-offramp-rung" not in response.headers
    for wrong in ({"X-Offramp-Max-Layer": "two"}, {"X-Offramp-Deadline-Ms": "-1"}, {"X-Offramp-Policy": "x"}):
        assert post(path, json=REQUESTS[path], headers=wrong).status_code in (400, 422)


@pytest.mark.parametrize("path", REQUESTS)
def test_every_path_needs_the_key(serve: Serve, two_classes: Classifier, path: str) -> None:
    server = serve(two_classes, api_key="sesame")
    refused = server.client.post(path, json=REQUESTS[path])
    assert refused.status_code == 401
    assert "error" in refused.json()
    right = {"Authorization": "Bearer sesame"}
    assert server.client.post(path, json=REQUESTS[path], headers=right).status_code == 200


def test_metadata_needs_the_key_and_probes_do_not(serve: Serve) -> None:
    client = serve(api_key="sesame").client
    for path in ("/v2", "/v2/models/colours"):
        assert client.get(path).status_code == 401
    for path in ("/ping", "/v2/health/live", "/v2/health/ready", "/v2/models/colours/ready"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", REQUESTS)
def test_other_content_types_and_large_bodies_are_refused(
    serve: Serve, two_classes: Classifier, path: str
) -> None:
    client = serve(two_classes, max_body=1000).client
    assert client.post(path, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post(path, json={"inputs": "a" * 1000}).status_code == 413


def test_requests_are_logged_and_counted_whatever_their_protocol(
    serve: Serve, two_classes: Classifier, logged: Callable[[int], list[Any]]
) -> None:
    server = serve(two_classes, log_texts=True)
    for path, body in REQUESTS.items():
        reply = server.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
    fields = [record.fields for record in logged(len(REQUESTS))]
    assert [(each["path"], each["items"], len(each["texts"])) for each in fields] == [
        (path, 2, 2) for path in REQUESTS
    ]
    counted = server.client.get("/metrics").text
    assert f'offramp_requests_total{{status="200"}} {float(len(REQUESTS))}' in counted
