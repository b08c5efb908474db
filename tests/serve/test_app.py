"""Responses and errors of the server: a fault never affects another request."""

import json
import logging
import re
import socket
import threading
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fakes import certified
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadOption
from offramp.inference import Classifier, Prediction, Runner
from offramp.models.exit_model import ExitModel
from offramp.policy import Policy
from offramp.runtimes import Tokens
from offramp.serve.app import READERS
from offramp.serve.audit import Audit, Sample
from offramp.serve.batcher import Limits
from offramp.serve.logs import JsonFormatter, log_warnings
from offramp.serve.options import ServerOptions
from offramp.serve.queue import Example

Serve = Callable[..., Any]
Until = Callable[[Callable[[], bool]], None]
Logged = Callable[[int], list[logging.LogRecord]]

TEXTS = ["good film", "", "bad bad bad", "a b c d e f g h i j", "unheard"]
PAIRS = [("good", "bad film"), ("a b", "c")]
LOOSE = certified("layer:1")


def as_json(predictions: list[Prediction]) -> list[dict[str, Any]]:
    return [
        {
            "label": each.label,
            "score": pytest.approx(each.score, abs=1e-4),
            "decision": each.decision,
            "layer": each.layer,
            "finite": True,
        }
        for each in predictions
    ]


def test_a_text_a_list_and_pairs_get_the_classifiers_predictions(serve: Serve, any_runtime: Path) -> None:
    classifier = Classifier.from_pretrained(any_runtime, threads=1)
    server = serve(classifier)
    for sent, texts in [(TEXTS[0], TEXTS[:1]), (TEXTS, TEXTS), (PAIRS, PAIRS)]:
        response = server.ask(sent)
        assert response.status_code == 200
        assert response.json() == {
            "predictions": as_json(classifier.predict(texts)),
            "layers": 4,
            "policy": str(classifier.runner.policy),
            "rung": 0,
        }


def test_probabilities_and_a_trace_are_optional(server: Any, classifier: Classifier) -> None:
    found = server.ask("good film", probabilities=True, trace=True).json()["predictions"][0]
    expected = classifier.predict("good film", every_exit=True)
    assert found["probabilities"] == pytest.approx(expected.probabilities)
    assert [each["layer"] for each in found["exits"]] == [0, 1, 2, 3, 4]
    for exit, wanted in zip(found["exits"], expected.exits, strict=True):
        assert exit["label"] == wanted.label
        assert exit["probabilities"] == pytest.approx(wanted.probabilities)


def test_a_request_may_name_only_an_allowed_policy(server: Any) -> None:
    answer = server.ask(TEXTS, policy="never").json()
    assert {each["layer"] for each in answer["predictions"]} == {4}
    assert (answer["policy"], answer["rung"]) == ("never", None)
    refused = server.ask(TEXTS, policy="confidence:0.1")
    assert refused.status_code == 422
    assert "confidence:0.775, never" in refused.json()["error"]


def test_a_request_may_not_name_a_policy_that_proved_wrong(serve: Serve) -> None:
    server = serve(rungs=(Policy.parse("confidence:0.775"), LOOSE), audit_share=0.5)
    assert server.ask(TEXTS, policy="layer:1").status_code == 200
    server.batcher.ladder.forbid(1)
    assert server.ask(TEXTS, policy="layer:1").status_code == 422
    info = server.client.get("/info").json()
    assert (info["allowed"], info["forbidden"]) == (["confidence:0.775", "never"], ["layer:1"])


def test_metrics_say_why_rungs_are_forbidden_until_they_are_allowed_again(serve: Serve) -> None:
    server = serve(rungs=(Policy.parse("confidence:0.775"), LOOSE, LOOSE), audit_share=0.5)

    def reasons() -> list[tuple[str, str]]:
        found = re.findall(
            r'offramp_rung_forbidden{reason="(.*)",rung="(.)"} 1', server.client.get("/metrics").text
        )
        return sorted(found)

    server.batcher.ladder.forbid(1)
    assert reasons() == [("certificate", "1"), ("stricter rung", "2")]
    server.batcher.ladder.allow(1)
    assert reasons() == []


def test_a_rung_that_another_worker_found_broken_is_no_longer_used_until_its_file_is_deleted(
    serve: Serve, tmp_path: Path, until: Until
) -> None:
    rungs = Policy.parse("confidence:0.775"), LOOSE
    other = Audit(rungs, (1, 2, 3, 4), share=1, folder=tmp_path)
    server = serve(rungs=rungs, audit_share=0.5, audit_folder=tmp_path)
    for token in range(20):
        other.offer(
            1, [Sample(Example([Tokens([token])]), [Prediction("x", 0.9, {"x": 0.9, "y": 0.1}, 1, 4)])]
        )
        other.examine(lambda *_: one("y"))
    assert server.batcher.ladder.last == 1
    other.settle()
    assert other.broken
    until(lambda: server.batcher.ladder.last == 0)
    assert server.ask(TEXTS, policy="layer:1").status_code == 422
    [report] = [each for each in server.client.get("/info").json()["audit"] if each["verdict"] == "broken"]
    assert "the mean loss" in report["reason"]
    assert 'offramp_certificate_broken{rung="1"} 1.0' in server.client.get("/metrics").text
    for file in tmp_path.glob("*.json"):
        file.unlink()
    until(lambda: server.batcher.ladder.last == 1)
    assert server.ask(TEXTS, policy="layer:1").status_code == 200


def one(label: str) -> Generator[None, None, list[Prediction]]:
    yield from ()
    return [Prediction(label, 0.9, {"x": 0.1, "y": 0.9}, 4, 4)]


def test_no_text_goes_deeper_than_max_layer(server: Any) -> None:
    answer = server.ask(TEXTS, policy="never", max_layer=2).json()
    assert {each["layer"] for each in answer["predictions"]} == {2}
    assert server.ask(TEXTS, max_layer=9).status_code == 422


def test_texts_past_their_deadline_get_the_first_exits_prediction(
    serve: Serve, door: Any, until: Until
) -> None:
    server = serve()
    door.shut()
    with ThreadPoolExecutor() as clients:
        first = clients.submit(server.ask, "good")
        assert door.reached.wait(60)
        late = clients.submit(server.ask, TEXTS, policy="never", deadline_ms=0.001)
        until(lambda: server.batcher.waiting.items == len(TEXTS))
        door.is_open.set()
        assert {each["layer"] for each in late.result().json()["predictions"]} == {0}
        assert first.result().status_code == 200


def test_a_long_text_is_truncated_or_refused(server: Any) -> None:
    assert server.ask("film " * 100).status_code == 200
    refused = server.ask(["film", "film " * 100], truncate=False)
    assert refused.status_code == 422
    assert server.ask("film", truncate=False).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe\xfd", 400),
        (b'{"texts": "a"', 400),
        (b"[" * 200_000, 400),
        (b'{"max_layer": ' + b"9" * 5000 + b"}", 400),
        (b"null", 422),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"texts": null}', 422),
        (b'{"texts": []}', 422),
        (b'{"texts": 5}', 422),
        (b'{"texts": {"a": "b"}}', 422),
        (b'{"texts": ["a", 5]}', 422),
        (b'{"texts": ["a", ["b", "c"]]}', 422),
        (b'{"texts": [["a", "b", "c"]]}', 422),
        (b'{"texts": "a", "text": "b"}', 422),
        (b'{"texts": "a", "\\ud800": 1}', 422),
        (b'{"texts": "a", "policy": "\\ud800"}', 422),
        (b'{"texts": "a", "policy": "../../etc/passwd"}', 422),
        (b'{"texts": "a", "max_layer": "2"}', 422),
        (b'{"texts": "a", "max_layer": -1}', 422),
        (b'{"texts": "a", "max_layer": true}', 422),
        (b'{"texts": "a", "deadline_ms": NaN}', 422),
        (b'{"texts": "a", "deadline_ms": -1}', 422),
        (b'{"texts": "a", "deadline_ms": 1e999}', 422),
        (b'{"texts": "a", "deadline_ms": 5, "trace": true}', 422),
        (b'{"texts": "a", "truncate": "no"}', 422),
    ],
)
def test_a_bad_request_gets_the_reason_in_one_sentence(server: Any, body: bytes, status: int) -> None:
    response = server.client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    problem = response.json()
    assert problem["error"].endswith(".")
    assert "\n" not in problem["error"]
    assert problem["id"] == response.headers["x-request-id"]
    assert server.ask("good").status_code == 200


@pytest.mark.parametrize("body", [b"null", b"[]", b'"text"', b"5"])
def test_a_body_that_is_no_object_is_called_that(server: Any, body: bytes) -> None:
    response = server.client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]) == (422, "the body is not a JSON object.")


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_other_methods_content_types_and_paths_are_refused_in_json(server: Any, method: str) -> None:
    assert server.client.request(method, "/predict").status_code == 405
    assert server.client.post("/predict", content=b'{"texts": "a"}').status_code == 415
    missing = server.client.get("/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"].endswith(".")


def test_a_million_characters_are_answered_and_more_than_the_limit_refused(server: Any) -> None:
    assert server.ask("z" * 10**6).status_code == 200
    assert server.ask("z" * 2**21).status_code == 413
    pieces = (b" " * 2**16 for _ in range(33))  # no Content-Length, so bytes are counted as they come
    chunked = server.client.post("/predict", content=pieces, headers={"Content-Type": "application/json"})
    assert chunked.status_code == 413
    assert server.ask("good").status_code == 200


def test_a_request_that_can_never_fit_is_not_told_to_retry(serve: Serve) -> None:
    refused = serve(limits=Limits(items=4)).ask(["a"] * 5)
    assert refused.status_code == 413
    assert "retry-after" not in refused.headers


@pytest.mark.parametrize(("sent", "meant"), [("good \\ud800 film", "good � film"), ("\\ud83d\\ude00", "😀")])
def test_lone_surrogates_are_replaced_and_pairs_joined(server: Any, sent: str, meant: str) -> None:
    answer = server.client.post(
        "/predict", content=f'{{"texts": "{sent}"}}', headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    assert answer.json() == server.ask(meant).json()


def test_excess_requests_are_refused_at_once_and_all_others_answered_once(
    serve: Serve, door: Any, classifier: Classifier, until: Until
) -> None:
    server = serve(limits=Limits(items=8, window=2))
    door.shut()
    with ThreadPoolExecutor(32) as clients:
        futures = [clients.submit(server.ask, [text, text]) for text in TEXTS * 4]
        until(lambda: sum(each.done() for each in futures) >= 12)  # the refused ones: no other can be done
        refused = [each.result() for each in futures if each.done()]
        assert {each.status_code for each in refused} == {429}
        assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
        assert server.client.get("/health").json() == {"status": "ok"}
        assert server.client.get("/ready").status_code == 200
        door.is_open.set()
    answered = [each.result() for each in futures if each.result().status_code == 200]
    assert len(answered) + sum(each.result().status_code == 429 for each in futures) == len(futures)
    assert answered
    for text, response in zip(TEXTS * 4, futures, strict=True):
        if response.result().status_code == 200:
            assert response.result().json()["predictions"] == as_json(classifier.predict([text, text]))
    counted = server.client.get("/metrics").text
    assert f'offramp_requests_total{{status="200"}} {float(len(answered))}' in counted


def test_health_answers_while_the_model_and_all_readers_are_busy(
    serve: Serve, door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    door.shut()
    submit = server.batcher.submit
    reading, read_on = threading.Semaphore(0), threading.Event()

    def submit_late(request: Any) -> Any:
        reading.release()
        read_on.wait()
        return submit(request)

    with ThreadPoolExecutor(3 + READERS) as clients:
        futures = [clients.submit(server.ask, "good")]
        assert door.reached.wait(60)
        monkeypatch.setattr(server.batcher, "submit", submit_late)
        futures += [clients.submit(server.ask, "good") for _ in range(2 + READERS)]
        for _ in range(READERS):
            assert reading.acquire(timeout=60)
        assert server.client.get("/health").json() == {"status": "ok"}
        read_on.set()
        door.is_open.set()
    assert [each.result().status_code for each in futures] == [200] * (3 + READERS)


def test_load_steps_down_the_ladder_and_every_response_names_its_rung(
    serve: Serve, door: Any, until: Until
) -> None:
    server = serve(limits=Limits(items=20, window=1), rungs=(Policy.parse("never"), LOOSE))
    door.shut()
    with ThreadPoolExecutor(16) as clients:
        futures = [clients.submit(server.ask, "good") for _ in range(16)]
        until(lambda: server.batcher.waiting.items >= 15)
        door.is_open.set()
    seen = {(each["rung"], each["policy"]) for each in (done.result().json() for done in futures)}
    assert (1, "layer:1") in seen
    assert seen <= {(0, "never"), (1, "layer:1")}


def test_scraping_metrics_never_moves_the_ladder(serve: Serve, door: Any, until: Until) -> None:
    server = serve(limits=Limits(items=20, window=1), rungs=(Policy.parse("never"), LOOSE))
    door.shut()
    with ThreadPoolExecutor(16) as clients:
        running = clients.submit(server.ask, "good")
        assert door.reached.wait(60)
        waiting = [clients.submit(server.ask, "good") for _ in range(12)]
        until(lambda: server.batcher.waiting.items == 12)
        scraped = [server.client.get("/metrics").text for _ in range(5)]
        info = server.client.get("/info").json()
        door.is_open.set()
    assert all("offramp_rung 0.0" in text for text in scraped)
    assert info["rung"] == 0
    assert running.result().json()["rung"] == 0
    assert waiting[0].result().json()["rung"] == 1  # the worker steps when it takes a window


def test_an_idle_server_steps_back_up_the_ladder(serve: Serve, door: Any, until: Until) -> None:
    server = serve(limits=Limits(items=20), rungs=(Policy.parse("never"), LOOSE))
    server.batcher.ladder.rise = 0.01
    assert server.ask(["good"] * 10).json()["rung"] == 1
    until(lambda: "offramp_rung 0.0" in server.client.get("/metrics").text)


def test_a_disconnected_client_leaves_the_queue(serve: Serve, door: Any, until: Until) -> None:
    server = serve(limits=Limits(items=4, window=1))
    door.shut()
    with ThreadPoolExecutor() as clients:
        running = clients.submit(server.ask, "good")
        assert door.reached.wait(60)
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({"texts": ["a", "b", "c"]})
        with socket.create_connection((host, int(port))) as client:
            head = ["POST /predict HTTP/1.1", "Host: here", "Content-Type: application/json"]
            client.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", body]).encode())
            until(lambda: server.batcher.waiting.items >= 3)
        until(lambda: server.batcher.waiting.items == 0)
        next_one = clients.submit(server.ask, ["d", "e", "f"])
        until(lambda: server.batcher.waiting.items == 3)
        door.is_open.set()
        assert running.result().status_code == next_one.result().status_code == 200


def test_a_failing_run_is_a_500_and_the_next_request_works(serve: Serve, door: Any) -> None:
    server = serve()
    door.fault = RuntimeError("out of memory")
    failed = server.ask(TEXTS)
    assert failed.status_code == 500
    assert failed.json()["error"].endswith(".")
    door.fault = None
    assert server.ask(TEXTS).status_code == 200


def test_a_bug_is_a_500_in_json_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    with monkeypatch.context() as broken:
        broken.setattr(server.batcher, "submit", lambda request: 1 / 0)
        failed = server.ask("good")
    assert failed.status_code == 500
    assert failed.json()["id"] == failed.headers["x-request-id"]
    assert "division" not in failed.text
    assert server.ask("good").status_code == 200


def test_a_draining_server_answers_503(serve: Serve) -> None:
    server = serve()
    server.batcher.drain(10)
    refused = server.ask("good")
    assert refused.status_code == 503
    assert refused.json()["error"].endswith(".")


def test_an_infinite_weight_that_few_texts_use_makes_the_server_not_ready(
    serve: Serve, saved: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = ExitModel.from_pretrained(saved)
    with torch.no_grad():
        model.backbone.embeddings.position_embeddings.weight[-1, 0] = float("inf")
    server = serve(Classifier(Runner(model, tokenizer)))
    assert server.ask("good").json()["predictions"][0]["finite"]
    assert server.client.get("/ready").status_code == 503


def test_nan_in_the_weights_makes_the_server_not_ready(
    serve: Serve, saved: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = ExitModel.from_pretrained(saved)
    with torch.no_grad():
        model.heads.classifiers[2].weight[0, 0] = float("nan")
    server = serve(Classifier(Runner(model, tokenizer)))
    assert server.client.get("/health").status_code == 200
    assert server.client.get("/ready").status_code == 503
    found = server.ask("good", policy="never", trace=True, probabilities=True).json()["predictions"][0][
        "exits"
    ][2]
    assert (found["label"], found["score"], found["finite"]) == (None, None, False)
    assert "offramp_texts_not_finite_total 1.0" in server.client.get("/metrics").text


def test_the_key_is_required_for_all_but_the_open_endpoints(serve: Serve) -> None:
    server = serve(api_key="sésame")
    for path in ("/", "/health", "/ready", "/docs"):
        assert server.client.get(path).status_code == 200
    for given in (None, "Bearer other", "Bearer", "Basic sesame", b"Bearer s\xe9same"):
        headers: Any = {} if given is None else {"Authorization": given}
        for path in ("/info", "/metrics"):
            assert server.client.get(path, headers=headers).status_code == 401
        refused = server.client.post("/predict", json={"texts": "good"}, headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
    right = {"Authorization": "Bearer sésame".encode()}
    assert server.client.post("/predict", json={"texts": "good"}, headers=right).status_code == 200


def test_clients_may_know_the_model_by_another_name(serve: Callable[..., Any]) -> None:
    client = serve(model_name="films").client
    assert client.get("/info").json()["model"] == "films"
    for name, status in {"films": 200, "colours": 404}.items():
        assert client.post("/classify", json={"model": name, "input": "good"}).status_code == status


def test_any_name_of_the_model_may_be_accepted(serve: Callable[..., Any]) -> None:
    client = serve(any_model_name=True).client
    assert client.get("/info").json()["model"] == "colours"
    assert client.post("/classify", json={"model": "gpt", "input": "good"}).json()["model"] == "colours"
    assert client.get("/v2/models/anything/ready").status_code == 200


def test_behind_a_proxy_paths_work_with_and_without_their_prefix(serve: Callable[..., Any]) -> None:
    server = serve(root_path="/films/new")
    for prefix in ("", "/films/new"):
        assert server.client.post(f"{prefix}/predict", json={"texts": "good"}).status_code == 200
        assert server.client.get(f"{prefix}/health").status_code == 200
        assert server.client.get(f"{prefix}/v2/models/colours/ready").status_code == 200
    assert server.client.get("/films/health").status_code == 404
    assert server.client.get("/openapi.json").json()["servers"] == [{"url": "/films/new"}]
    assert "'/films/new/openapi.json'" in server.client.get("/docs").text
    assert server.gate.shape_of("/films/new/predict") == server.gate.shape_of("/predict") is not None


@pytest.mark.parametrize("path", ["films", "/", "/films/", "/a b", "//a"])
def test_a_root_path_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(BadOption, match="is not a path such as /films"):
        ServerOptions("model", root_path=path)


@pytest.mark.parametrize(
    ("proxies", "client"), [(["127.0.0.0/8"], "203.0.113.7"), (["10.0.0.1"], "127.0.0.1")]
)
def test_the_log_has_the_client_that_a_trusted_proxy_names(
    serve: Serve, logged: Logged, proxies: list[str], client: str
) -> None:
    server = serve(trusted_proxy=proxies)
    server.client.get("/info", headers={"X-Forwarded-For": "203.0.113.7"})
    (record,) = logged(1)
    assert record.fields["client"] == client


def test_info_describes_what_is_served(serve: Serve, classifier: Classifier) -> None:
    info = serve(audit_share=0.5).client.get("/info").json()
    assert info["model"] == "colours"
    assert info["labels"] == ["red", "green", "blue"]
    assert info["exits"] == [0, 1, 2, 3, 4]
    assert info["fingerprint"] == classifier.runner.runtime.fingerprint()
    assert info["allowed"] == ["confidence:0.775", "never"]
    assert info["limits"]["items"] == Limits().items
    assert info["ladder"] == [{"policy": "confidence:0.775", "guarantee": None, "certificate": None}]
    assert info["guarantee"] is None


def test_info_has_the_guarantee_in_one_sentence(serve: Serve) -> None:
    assert LOOSE.certificate is not None
    info = serve(rungs=[LOOSE]).client.get("/info").json()
    assert info["guarantee"] == LOOSE.certificate.summary
    assert info["certificate"]["promise"] == LOOSE.certificate.promise


def test_metrics_count_texts_by_exit_layer(serve: Serve) -> None:
    server = serve()
    answers = server.ask(TEXTS).json()["predictions"]
    server.ask("good", policy="never")
    server.ask(5)
    lines = server.client.get("/metrics").text.splitlines()
    for layer in {each["layer"] for each in answers}:
        count = sum(each["layer"] == layer for each in answers)
        assert f'offramp_texts_total{{layer="{layer}",rung="0"}} {float(count)}' in lines
    assert 'offramp_texts_total{layer="4",rung="none"} 1.0' in lines
    assert 'offramp_requests_total{status="422"} 1.0' in lines
    assert "offramp_waiting_texts 0.0" in lines
    assert "offramp_healthy 1.0" in lines


@pytest.mark.parametrize("log_texts", [False, True])
def test_the_log_has_a_line_for_each_request_and_texts_only_with_log_texts(
    serve: Serve, logged: Logged, caplog: pytest.LogCaptureFixture, log_texts: bool
) -> None:
    server = serve(log_texts=log_texts)
    answer = server.ask(["a secret", "another"])
    server.client.get("/health")
    server.ask([5, "a secret"])
    lines = [json.loads(JsonFormatter().format(record)) for record in logged(2)]
    good, bad = lines
    assert good["id"] == answer.headers["x-request-id"]
    assert (good["status"], good["items"], good["policy"], good["rung"]) == (200, 2, "confidence:0.775", 0)
    assert good["layers"] == sum(each["layer"] for each in answer.json()["predictions"]) / 2
    assert good["ms"] >= 0
    assert (bad["status"], bad["error"]) == (422, "BadData")
    assert ("secret" in caplog.text + json.dumps(lines)) is log_texts


def test_a_warning_in_the_log_is_its_sentence_without_the_place_in_the_code(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("offramp"), "propagate", True)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        log_warnings()
        warnings.warn("the certificate does not apply.", stacklevel=1)
    assert [record.getMessage() for record in caplog.records] == ["the certificate does not apply."]


@pytest.mark.parametrize(
    "texts", ["NaN", "[Infinity]", "1e999", '"\\ud800"', '["\\ud800"]', "[" * 300 + "]" * 300]
)
def test_every_line_of_the_log_is_json_whatever_the_texts(serve: Serve, logged: Logged, texts: str) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    server = serve(log_texts=True)
    server.client.post(
        "/predict", content=f'{{"texts": {texts}}}', headers={"Content-Type": "application/json"}
    )
    [record] = logged(1)
    line = json.loads(JsonFormatter().format(record), parse_constant=refuse)
    json.dumps(line, ensure_ascii=False).encode()  # no lone surrogate, which strict readers refuse


def test_the_callers_request_id_is_kept_if_it_is_well_formed(server: Any) -> None:
    client: httpx.Client = server.client
    assert client.get("/health", headers={"X-Request-ID": "a-1"}).headers["x-request-id"] == "a-1"
    assert client.get("/health", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"
