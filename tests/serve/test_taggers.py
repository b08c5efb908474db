"""Servers of models that tag tokens: every text gets its own spans, whatever else the server does."""

import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import schemathesis
import torch
import tritonclient.http as triton
from fakes import certified
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from transformers import TokenClassificationPipeline

from offramp import ExitModel, Runner, Tagger
from offramp.policy import Policy
from offramp.serve.batcher import Limits
from offramp.serve.protocols import TAG

LONG = "good film x y z bad a b c d " * 12
TEXTS = ["a good film", "b", "", "x y z a bad film", "good 🙂🙂 bad e\u0301 film a b", LONG]

Serve = Callable[..., Any]


def spans(found: Any) -> list[tuple[Any, ...]]:
    """The spans of a response's prediction, or of a tagger's."""
    fields = ("start", "end", "label", "text")
    rows = [
        each if isinstance(each, dict) else {name: getattr(each, name) for name in fields} for each in found
    ]
    return [tuple(row[name] for name in fields) for row in rows]


def test_texts_of_any_length_get_the_spans_and_layers_of_the_tagger(serve: Serve, tagger: Tagger) -> None:
    server = serve(tagger)
    response = server.client.post("/tag", json={"texts": TEXTS})
    assert response.status_code == 200
    found, expected = response.json(), tagger.tag(TEXTS)
    assert [spans(each["spans"]) for each in found["predictions"]] == [*map(spans, expected)]
    assert [each["layer"] for each in found["predictions"]] == [each.layer for each in expected]
    assert len({each.layer for each in expected}) > 1
    for one, other in zip(found["predictions"], expected, strict=True):
        assert [span["score"] for span in one["spans"]] == pytest.approx(
            [span.score for span in other], abs=1e-5
        )
    assert {key: found[key] for key in ("layers", "policy", "rung")} == {
        "layers": 4,
        "policy": "patience:1",
        "rung": 0,
    }
    assert found == server.client.post("/predict", json={"texts": TEXTS}).json()
    single = server.client.post("/tag", json={"texts": LONG}).json()["predictions"]
    assert [spans(each["spans"]) for each in single] == [spans(expected[-1])]
    assert len(tagger.tokenizer([LONG])[0].windows) > 3


def test_requests_of_many_clients_at_once_get_their_own_spans(serve: Serve, tagger: Tagger) -> None:
    server = serve(tagger, limits=Limits(window=3))
    words = "good film x y z bad a b c d".split()
    draw = np.random.default_rng(0)
    asked = [[" ".join(draw.choice(words, size)) for size in draw.integers(0, 90, 3)] for _ in range(24)]
    with ThreadPoolExecutor(8) as clients:
        found = [*clients.map(lambda texts: server.client.post("/tag", json={"texts": texts}).json(), asked)]
    for texts, each in zip(asked, found, strict=True):
        expected = tagger.tag(texts)
        assert [spans(one["spans"]) for one in each["predictions"]] == [*map(spans, expected)]
        assert [one["layer"] for one in each["predictions"]] == [one.layer for one in expected]
    assert server.batcher.waiting.items == server.batcher.waiting.tokens == 0


def test_offsets_are_those_of_javascript_on_request(serve: Serve, tagger: Tagger) -> None:
    server = serve(tagger, cache=10)
    for utf16 in (False, True, False):
        response = server.client.post("/tag", json={"texts": TEXTS, "utf16": utf16}).json()
        expected = tagger.tag(TEXTS, utf16=utf16)
        assert [spans(each["spans"]) for each in response["predictions"]] == [*map(spans, expected)]
    assert spans(tagger.tag(TEXTS[4])) != spans(tagger.tag(TEXTS[4], utf16=True))
    assert re.search(r"^offramp_cached_texts_total 12.0$", server.client.get("/metrics").text, re.MULTILINE)


def test_exits_can_be_chosen_for_a_request(serve: Serve, tagger: Tagger) -> None:
    server = serve(tagger)
    for options, layers in [
        ({"policy": "never"}, {4}),
        ({"max_layer": 0}, {0}),
        ({"deadline_ms": 1e-6}, {0}),
    ]:
        found = server.client.post("/tag", json={"texts": TEXTS, **options}).json()
        assert {each["layer"] for each in found["predictions"]} == layers


def test_an_invalid_surrogate_is_one_character(serve: Serve, tagger: Tagger) -> None:
    content = b'{"texts": "good \\ud83d film a bad film", "policy": "never"}'
    headers = {"Content-Type": "application/json"}
    found = serve(tagger).client.post("/tag", content=content, headers=headers).json()
    assert spans(found["predictions"][0]["spans"]) == spans(
        tagger.tag("good \ufffd film a bad film", policy="never")
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/tag", {"texts": [["good", "film"]]}, 422, "item 0 is a pair of texts"),
        ("/tag", {"texts": []}, 422, "no texts"),
        ("/tag", {"texts": ["a", 3]}, 422, "item 1 is int 3"),
        ("/tag", {"texts": "a", "trace": True}, 422, "trace"),
        ("/tag", {"texts": "a", "truncate": True}, 422, "truncate"),
        ("/rerank", {"query": "a", "texts": ["b"]}, 404, "not found"),
        ("/classify", {"inputs": "a"}, 404, "not found"),
        ("/", {"inputs": [["a"], ["b", "c"]]}, 422, "item 0 is list"),
        ("/", {"inputs": "a", "parameters": {"aggregation_strategy": "max"}}, 422, "only `first`"),
        ("/", {"inputs": "a", "parameters": {"stride": 8}}, 422, "stride"),
        ("/", {"inputs": "a", "parameters": {"ignore_labels": ["A"]}}, 422, "add it to the list"),
    ],
)
def test_what_a_tagger_cannot_do_is_refused(
    serve: Serve, tagger: Tagger, path: str, body: Any, status: int, message: str
) -> None:
    response = serve(tagger).client.post(path, json=body)
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text


def test_a_classifier_has_no_path_for_tags(server: Any) -> None:
    assert server.client.post("/tag", json={"texts": "a"}).status_code == 404


def test_a_text_with_more_windows_than_the_queue_holds_is_refused(serve: Serve, tagger: Tagger) -> None:
    response = serve(tagger, limits=Limits(items=3)).client.post("/tag", json={"texts": LONG})
    assert response.status_code == 413
    assert "can never fit" in response.json()["error"]


def test_a_failure_in_one_window_fails_its_text_and_no_other(
    serve: Serve, tagger: Tagger, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, embed = serve(tagger, limits=Limits(window=2)), tagger.runner.runtime.embed
    calls = []

    def fail_once(tokens: Any) -> Any:
        calls.append(len(tokens))
        if len(calls) == 2:
            raise RuntimeError("the second window fails")
        return embed(tokens)

    monkeypatch.setattr(tagger.runner.runtime, "embed", fail_once)
    assert server.client.post("/tag", json={"texts": LONG}).status_code == 500
    found = server.client.post("/tag", json={"texts": LONG}).json()
    assert spans(found["predictions"][0]["spans"]) == spans(tagger.tag(LONG))
    assert server.batcher.waiting.items == 0


def test_logits_that_are_not_finite_give_no_spans(plain_tagger: Any, tokenizer: Any, serve: Serve) -> None:
    model = ExitModel.from_encoder(plain_tagger).eval()
    with torch.no_grad():
        model.heads.classifiers[-1].bias.fill_(float("nan"))
    server = serve(Tagger(Runner(model, tokenizer)))
    assert server.client.get("/ready").status_code == 503
    found = server.client.post("/tag", json={"texts": "a good film"}).json()
    assert found["predictions"] == [{"spans": [], "layer": 4, "finite": False}]
    assert server.client.post("/", json={"inputs": "a good film"}).status_code == 424


def test_metrics_and_info_describe_a_tagger(serve: Serve, tagger: Tagger) -> None:
    server = serve(tagger)
    server.client.post("/tag", json={"texts": TEXTS, "policy": "never"})
    assert 'offramp_texts_total{layer="4",rung="none"} 6.0' in server.client.get("/metrics").text
    info = server.client.get("/info").json()
    assert (info["problem"], info["labels"]) == ("token_classification", [*tagger.runner.runtime.info.labels])
    assert [*info["model_type"]] == ["tagger"]


WORDS = "good film x y z bad a b c d".split()


def some_texts(number: int) -> list[str]:
    """Different ones, a few of which are longer than a window."""
    draw = np.random.default_rng(1)
    sizes = draw.choice([2, 3, 5, 8, 60], number, p=[0.2, 0.25, 0.25, 0.2, 0.1])
    return [" ".join(draw.choice(WORDS, size)) for size in sizes]


def words_in(found: Any) -> set[int]:
    """The offsets of the words that are in a span."""
    return {span.start + word.start() for span in found for word in re.finditer(r"\S+", span.text)}


def is_changed(found: Any, full: Any) -> float:
    return float(spans(found) != spans(full))


def misses_words(found: Any, full: Any) -> float:
    return float(bool(words_in(full) - words_in(found)))


def missed_share(found: Any, full: Any) -> float:
    return len(words_in(full) - words_in(found)) / max(1, len(words_in(full)))


@pytest.fixture(scope="module")
def forgetful(plain_tagger: Any, tokenizer: Any) -> Tagger:
    """Its early exits find fewer words than its last."""
    model = ExitModel.from_encoder(plain_tagger).eval()
    torch.manual_seed(3)
    for head in model.heads.classifiers[:-1]:
        torch.nn.init.normal_(head.weight, std=0.5)
        with torch.no_grad():
            head.bias[0] = 2.0
    return Tagger(Runner(model, tokenizer, "patience:1"))


@pytest.mark.parametrize(
    ("risk", "loss"),
    [("changed_spans", is_changed), ("missed_words", misses_words), ("missed_share", missed_share)],
)
def test_the_audit_counts_what_texts_lose_against_full_depth(
    serve: Serve, forgetful: Tagger, until: Callable[..., None], risk: str, loss: Callable[[Any, Any], float]
) -> None:
    rung = certified("patience:1", risk=risk, epsilon=0.9)
    server = serve(forgetful, rungs=(rung,), audit_share=1.0)
    texts = some_texts(40)
    for text in texts:
        server.client.post("/tag", json={"texts": text})
    until(lambda: server.batcher.audit.reports()[0].examined == len({*texts}))
    [report] = server.batcher.audit.reports()
    lost = [loss(forgetful.tag(text), forgetful.tag(text, policy="never")) for text in {*texts}]
    assert report.disagreed == pytest.approx(sum(lost))
    assert len({*lost}) > 1


def test_a_rung_whose_certificate_about_spans_proves_wrong_is_no_longer_used(
    serve: Serve, tagger: Tagger, until: Callable[..., None]
) -> None:
    rung = certified("layer:0", risk="changed_spans", epsilon=0.01)
    server = serve(tagger, rungs=(Policy.parse("never"), rung), audit_share=1.0)
    for text in some_texts(60):
        server.batcher.ladder.current = min(1, server.batcher.ladder.last)
        server.client.post("/tag", json={"texts": text})
        until(lambda: server.batcher.audit.pending == 0)
        if server.batcher.ladder.forbidden:
            break
    assert [*server.batcher.ladder.forbidden] == [rung]
    assert server.client.post("/tag", json={"texts": "a good film"}).json()["rung"] == 0


def test_every_path_of_a_tagger_is_described_and_its_own_conforms(serve: Serve, tagger: Tagger) -> None:
    server = serve(tagger)
    described = server.client.get("/openapi.json").json()["paths"]
    assert {*described} == {"/health", "/ready", "/info", "/metrics"} | {route.path for route in TAG}
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @given(schema["/tag"]["POST"].as_strategy(generation_mode=mode))
        @settings(
            max_examples=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate()

        check()


# Clients


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run offline, where the client refuses even this machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("path", ["", "/predict", "/invocations"])
def test_hugging_faces_client_gets_what_transformers_pipeline_gives(
    serve: Serve, tagger: Tagger, plain_tagger: Any, tokenizer: Any, path: str
) -> None:
    never = Tagger(Runner(tagger.runner.runtime, tokenizer, "never"))
    client = huggingface_hub.InferenceClient(model=f"{serve(never).url}{path}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = TokenClassificationPipeline(
            model=plain_tagger, tokenizer=tokenizer, aggregation_strategy="first"
        )
    for text in ("x y z a bad film", "good film a b", "good 🙂 bad e\u0301 film a b"):
        expected = pipeline(text)
        assert expected
        for options in ({}, {"aggregation_strategy": "first"}):
            found = client.token_classification(text, **options)
            assert [(each.entity_group, each.start, each.end) for each in found] == [
                (each["entity_group"], each["start"], each["end"]) for each in expected
            ]
            assert [each.score for each in found] == pytest.approx(
                [each["score"] for each in expected], abs=1e-5
            )
            assert [each.word for each in found] == [text[each.start : each.end] for each in found]
        kept = client.token_classification(text, ignore_labels=["O", "A"])
        assert [each.entity_group for each in kept] == [
            each["entity_group"] for each in expected if each["entity_group"] != "A"
        ]


def groups(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(each["start"], each["end"], each["entity_group"]) for each in found]


def test_hugging_faces_batches_get_a_list_each(serve: Serve, tagger: Tagger) -> None:
    client = serve(tagger).client
    one = client.post("/", json={"inputs": TEXTS[3]})
    both = client.post("/", json={"inputs": TEXTS[3:5]})
    assert groups(both.json()[0]) == groups(one.json())
    assert len(both.json()) == 2
    assert both.headers["x-offramp-layers"] == ",".join(str(each.layer) for each in tagger.tag(TEXTS[3:5]))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("utf16", [False, True])
def test_tritons_client_gets_spans_as_tensors(
    serve: Serve, tagger: Tagger, binary: bool, utf16: bool
) -> None:
    expected = tagger.tag(TEXTS, policy="never", utf16=utf16)
    with triton.InferenceServerClient(serve(tagger).url.removeprefix("http://")) as client:
        about = client.get_model_metadata("colours")
        assert [each["name"] for each in about["inputs"]] == ["text"]
        sent = triton.InferInput("text", [len(TEXTS)], "BYTES")
        sent.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=binary)
        asked = [triton.InferRequestedOutput(each["name"], binary_data=binary) for each in about["outputs"]]
        parameters = {"policy": "never", "utf16": utf16}
        found = client.infer("colours", [sent], outputs=asked, parameters=parameters)
        flat = [span for each in expected for span in each]
        assert found.as_numpy("spans").tolist() == [len(each) for each in expected]
        assert found.as_numpy("start").tolist() == [span.start for span in flat]
        assert found.as_numpy("end").tolist() == [span.end for span in flat]
        assert found.as_numpy("score") == pytest.approx([span.score for span in flat], abs=1e-5)
        labels = found.as_numpy("label").tolist()
        assert [label.decode() if isinstance(label, bytes) else label for label in labels] == [
            span.label for span in flat
        ]
        assert found.as_numpy("layer").tolist() == [4] * len(TEXTS)
        empty = triton.InferInput("text", [1], "BYTES")
        empty.set_data_from_numpy(np.array([""], dtype=object), binary_data=binary)
        nothing = client.infer("colours", [empty], outputs=asked)
        assert nothing.as_numpy("spans").tolist() == [0]
        assert nothing.as_numpy("start").tolist() == []
