"""offramp certify with the addresses of servers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from offramp import Tagger
from offramp.cli import app


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rng, words = np.random.default_rng(0), [*"abcdefghijklmnopqrstuvwxyz"]
    file = tmp_path / "logs.txt"
    file.write_text(
        "\n".join(f"{' '.join(rng.choice(words, 5))} {row}" for row in range(160)), encoding="utf-8"
    )
    return file


def certify(*arguments: Any) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["certify", *map(str, arguments), "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr


def test_two_servers_of_one_model_are_proven_to_agree(
    serve: Callable[..., Any], saved: Path, texts: Path
) -> None:
    first, second = serve(), serve()
    code, made = certify(first.url, f"{second.url}/predict/", "--texts", texts)
    assert (code, made["verdict"], made["examined"]) == (0, "proven", 160)
    code, made = certify(first.url, saved, "--texts", texts, "--decide", "red>=0.4")
    assert (code, made["decision"]) == (0, "red>=0.4")


def test_a_refusal_of_a_server_is_bad_input(serve: Callable[..., Any], texts: Path) -> None:
    server = serve(api_key="secret")
    code, message = certify(server.url, server.url, "--texts", texts)
    assert code == 2
    assert "/info answers 401" in message


def test_the_server_of_a_tagger_is_refused_by_what_it_does(
    serve: Callable[..., Any], tagger: Tagger, saved: Path, texts: Path
) -> None:
    server = serve(tagger)
    code, message = certify(server.url, saved, "--texts", texts)
    assert code == 2
    assert message.startswith(f"offramp: {server.url} tags tokens, and certify compares")
