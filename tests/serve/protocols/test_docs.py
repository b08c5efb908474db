"""The requests that docs/serving.md shows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs/serving.md"
EXAMPLES = re.findall(
    r"^curl --json '(.*)' localhost:8000(/\S*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("body", "path"), EXAMPLES)
def test_a_documented_request_works(served: Callable[[str], Any], body: str, path: str) -> None:
    client = served("tagger" if path == "/tag" else "two_classes").client
    response = client.post(path.replace("mine", "colours"), json=json.loads(body.replace("mine", "colours")))
    assert response.status_code == 200, response.text


def test_every_protocol_has_an_example() -> None:
    assert {"/predict", "/tag", "/", "/rerank", "/v1/rerank", "/classify"} < {path for _, path in EXAMPLES}
