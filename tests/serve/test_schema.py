"""The server conforms to its OpenAPI description, for requests generated from it."""

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from offramp.serve.protocols import CLASSIFY
from offramp.serve.protocols.native import PredictRequest, request_schema


@pytest.fixture(autouse=True, scope="module")
def without_collections() -> Iterator[None]:
    """schemathesis imports parts of itself late, and up to Python 3.11.7 a garbage collection while pytest parses
    their source may fail (cpython#106905)."""
    gc.disable()
    yield
    gc.enable()


GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        ("POST", "/predict", GOOD),
        ("POST", "/predict", BAD),
        ("GET", "/health", GOOD),
        ("GET", "/ready", GOOD),
        ("GET", "/info", GOOD),
        ("GET", "/metrics", GOOD),
    ],
)
def test_responses_conform_to_the_description(
    server: Any, method: str, path: str, mode: GenerationMode
) -> None:
    described = schemathesis.openapi.from_url(f"{server.url}/openapi.json")

    @given(described[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=50 if path == "/predict" else 1,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate()

    check()


def test_every_endpoint_is_described(server: Any) -> None:
    described = server.client.get("/openapi.json").json()
    predictions = {route.path for route in CLASSIFY}
    assert set(described["paths"]) == {"/health", "/ready", "/info", "/metrics"} | predictions
    assert "$defs" not in json.dumps(described)
    schema = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["policy"]["enum"] == ["confidence:0.775", "never", None]
    assert schema["properties"]["max_layer"]["enum"] == [0, 1, 2, 3, 4, None]


@pytest.mark.parametrize(
    ("pairs", "lists"), [(True, ["array"]), (False, ["string"]), (None, ["string", "array"])]
)
def test_the_description_has_pairs_only_for_models_of_pairs(pairs: bool | None, lists: list[str]) -> None:
    texts = request_schema(PredictRequest, [], [1], pairs)["properties"]["texts"]["anyOf"]
    assert [each["items"]["type"] for each in texts if each["type"] == "array"] == lists
