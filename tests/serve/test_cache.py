"""The cache: an exact repeat is answered at once, and never in another way."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from fakes import certified

from offramp.inference import Prediction
from offramp.policy import Policy
from offramp.serve.cache import Cache, CacheEntry

Serve = Callable[..., Any]
WORDS = ["good", "a good film", "", "b c d e"]
NAMED = ["confidence:0.6", "never"]


@pytest.fixture
def rungs() -> tuple[Policy, ...]:
    return tuple(map(certified, ("confidence:0.6", "layer:2", "layer:1")))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_was_asked_before_answers_are_those_of_a_server_without_a_cache(
    serve: Serve, rungs: tuple[Policy, ...], classifier: Any, seed: int
) -> None:
    draw, repeats = random.Random(seed), 0
    server = serve(rungs=rungs, cache=40)
    ladder = server.batcher.ladder
    for _ in range(150):
        ladder.current = draw.choice([*[ladder.current] * 6, 0, 1, 2])
        texts = draw.choices(WORDS, k=draw.choice([1, 1, 1, 2]))
        options = {
            name: value
            for name, value in {
                "policy": draw.choice([None, None, None, *NAMED]),
                "max_layer": draw.choice([None, None, None, 1]),
                "trace": draw.choice([False, False, False, True]),
                "truncate": draw.choice([True, True, True, False]),
            }.items()
            if value is not None
        }
        late = not options["trace"] and draw.random() < 0.3
        sent = {**options, "deadline_ms": 1e-6} if late else options
        before = cached_texts(server)
        response = server.ask(texts, **sent)
        found, policy = response.json(), response.json()["policy"]
        is_repeat = cached_texts(server) == before + len(texts)
        repeats += is_repeat
        if late and not is_repeat:
            continue  # cut short, so the test is that it is not found later
        assert policy == str(
            classifier.runner.resolve_policy(current(options, found, rungs), options.get("max_layer"))
        )
        expected = classifier.predict(texts, policy=policy)
        assert [each["layer"] for each in found["predictions"]] == [each.layer for each in expected]
        assert [each["label"] for each in found["predictions"]] == [each.label for each in expected]
        assert [each["score"] for each in found["predictions"]] == pytest.approx(
            [each.score for each in expected], abs=1e-4
        )
        assert all(("exits" in each) == options["trace"] for each in found["predictions"])
    assert repeats > 20


def current(options: dict[str, Any], found: dict[str, Any], rungs: tuple[Policy, ...]) -> Policy:
    """What must have decided, by the rung of the response."""
    if "policy" in options:
        assert found["rung"] is None
        return Policy.parse(options["policy"])
    return rungs[found["rung"]]


def cached_texts(server: Any) -> int:
    [count] = re.findall(
        r"^offramp_cached_texts_total (\S+)$", server.client.get("/metrics").text, re.MULTILINE
    )
    return int(float(count))


def test_an_answer_of_one_rung_is_not_given_on_another(serve: Serve, rungs: tuple[Policy, ...]) -> None:
    server = serve(rungs=rungs, cache=10)
    layers = []
    for rung in (0, 1, 2, 1, 2, 0):
        server.batcher.ladder.current = rung
        response = server.ask("a good film").json()
        assert response["rung"] == rung
        layers.append(response["predictions"][0]["layer"])
    assert layers[1:] == [2, 1, 2, 1, layers[0]]
    assert cached_texts(server) == 3


def test_answers_to_requests_with_a_deadline_are_not_kept(serve: Serve) -> None:
    server = serve(cache=10)
    never = {"policy": "never", "deadline_ms": 1e-6}
    late = server.ask("a good film", **never).json()["predictions"][0]["layer"]
    full = server.ask("a good film", policy="never").json()["predictions"][0]["layer"]
    assert late < full
    assert cached_texts(server) == 0
    assert (
        server.ask("a good film", **never).json()["predictions"][0]["layer"] == full
    )  # known, so it is in time


def test_repeats_are_not_audited_again(serve: Serve, until: Callable[..., None]) -> None:
    server = serve(cache=10, audit_share=1.0)
    for _ in range(5):
        server.ask(["good"])
    server.ask(["bad"])
    until(lambda: server.batcher.audit.reports()[0].examined == 2)
    assert cached_texts(server) == 4


def test_a_rung_that_proved_wrong_answers_nothing_from_the_cache(
    serve: Serve, rungs: tuple[Policy, ...]
) -> None:
    server = serve(rungs=rungs, cache=10)
    server.ask("good")
    server.batcher.ladder.forbid(0)
    assert (server.ask("good").json()["policy"], cached_texts(server)) == ("never", 0)


def test_a_repeat_needs_no_room_and_no_model(serve: Serve, door: Any) -> None:
    server = serve(cache=10)
    known = server.ask("good").json()
    door.shut()
    assert server.ask("good").json() == known
    assert not door.reached.is_set()


def test_a_text_that_is_too_long_is_refused_though_its_beginning_is_known(serve: Serve) -> None:
    server, long = serve(cache=10), "a " * 500
    assert server.ask(long).status_code == 200
    assert server.ask(long, truncate=False).status_code == 422


def test_the_least_recently_used_goes_first() -> None:
    cache, prediction = Cache(2), Prediction("a", 1.0, {}, 1, 2)
    for key in "ab":
        cache.put(key, CacheEntry([prediction], 1))
    assert cache.get("a")
    cache.put("c", CacheEntry([prediction], 1))
    assert [bool(cache.get(key)) for key in "abc"] == [True, False, True]
    assert cache.get("ab") is None
