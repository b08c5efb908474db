"""Requests join the traces of their callers, with OpenTelemetry or without."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from offramp.serve import logs

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
INVALID = [
    "",
    "00",
    f"00-{'0' * 32}-{CALLER}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{CALLER}-01",
    "é" * 55,
]

Spans = Callable[..., dict[str, ReadableSpan]]


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)  # once for each process, as a program does
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter, until: Callable[..., None]) -> Spans:
    """spans("queue", "run") -> the finished spans of these names, awaited."""
    exporter.clear()

    def finished(*names: str) -> dict[str, ReadableSpan]:
        until(lambda: {*names} <= {span.name for span in exporter.get_finished_spans()})
        found = [span for span in exporter.get_finished_spans() if not span.name.startswith("fastapi.")]
        assert sorted(span.name for span in found) == sorted(names)
        return {span.name: span for span in found}

    return finished


def test_the_queue_the_run_and_the_audit_are_spans_in_the_callers_trace(
    serve: Callable[..., Any], spans: Spans
) -> None:
    server = serve(audit_share=1.0)
    sent = {"texts": ["good film", "bad"]}
    response = server.client.post("/predict", json=sent, headers={"traceparent": TRACEPARENT})
    found = spans("POST /predict", "queue", "run", "audit")
    request, queue, run, audit = found.values()
    assert {span.context.trace_id for span in found.values()} == {int(TRACE, 16)}
    request = found["POST /predict"]
    queue, run, audit = (found[name] for name in ("queue", "run", "audit"))
    assert request.parent.span_id == int(CALLER, 16)
    [inside] = {span.parent.span_id for span in (queue, run, audit)}
    assert response.headers["traceparent"] == f"00-{TRACE}-{inside:016x}-01"
    predictions = response.json()["predictions"]
    assert run.attributes["offramp.layer"] == sum(each["layer"] for each in predictions) / 2
    assert run.attributes["offramp.policy"] == response.json()["policy"] == audit.attributes["offramp.policy"]
    assert run.attributes["offramp.rung"] == audit.attributes["offramp.rung"] == 0
    assert run.attributes["offramp.items"] == 2
    assert audit.attributes["offramp.loss"] in (0.0, 1.0)
    assert queue.start_time <= queue.end_time <= run.end_time <= audit.end_time
    assert request.start_time <= run.start_time <= run.end_time


def test_a_request_without_a_trace_begins_one_that_the_log_names(
    serve: Callable[..., Any], spans: Spans, logged: Callable[[int], Any]
) -> None:
    response = serve().ask("good")
    found = spans("POST /predict", "queue", "run")
    [record] = logged(1)
    ids = {f"{span.context.trace_id:032x}" for span in found.values()}
    assert ids == {record.fields["trace_id"]} == {response.headers["traceparent"].split("-")[1]}
    assert record.fields["span_id"] == f"{found['run'].parent.span_id:016x}"
    assert found["POST /predict"].parent is None


@pytest.mark.parametrize("invalid", INVALID)
def test_an_invalid_traceparent_is_ignored(serve: Callable[..., Any], spans: Spans, invalid: str) -> None:
    headers = {"traceparent": invalid.encode()}
    assert serve().client.post("/predict", json={"texts": "a"}, headers=headers).status_code == 200
    assert spans("POST /predict", "queue", "run")["POST /predict"].parent is None


def test_a_refused_request_has_a_span_and_a_probe_has_none(serve: Callable[..., Any], spans: Spans) -> None:
    server = serve()
    server.client.get("/health")
    server.client.get("/metrics")
    server.client.post("/predict", content=b"{", headers={"Content-Type": "application/json"})
    assert spans("POST /predict")["POST /predict"].attributes["http.response.status_code"] == 400


def test_a_caller_that_does_not_sample_gets_no_spans(
    serve: Callable[..., Any], exporter: InMemorySpanExporter
) -> None:
    exporter.clear()
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    response = serve().client.post("/predict", json={"texts": "a"}, headers=headers)
    assert response.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert response.headers["traceparent"].endswith("-00")
    assert not exporter.get_finished_spans()


@pytest.fixture
def without_open_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TRACER", None)


@pytest.mark.usefixtures("without_open_telemetry")
def test_without_open_telemetry_the_callers_trace_is_logged_and_returned(
    serve: Callable[..., Any], logged: Callable[[int], Any]
) -> None:
    response = serve().client.post("/predict", json={"texts": "a"}, headers={"traceparent": TRACEPARENT})
    assert response.headers["traceparent"] == TRACEPARENT
    [record] = logged(1)
    assert (record.fields["trace_id"], record.fields["span_id"]) == (TRACE, CALLER)


@pytest.mark.usefixtures("without_open_telemetry")
@pytest.mark.parametrize("invalid", INVALID)
def test_without_open_telemetry_an_invalid_traceparent_is_not_returned(
    serve: Callable[..., Any], invalid: str
) -> None:
    headers = {"traceparent": invalid.encode()}
    response = serve().client.post("/predict", json={"texts": "a"}, headers=headers)
    assert response.status_code == 200
    assert "traceparent" not in response.headers


def test_open_telemetry_is_not_needed() -> None:
    """By us; recent versions of FastAPI need its API."""
    code = "import sys; sys.modules['opentelemetry'] = None; import offramp.serve.logs"
    subprocess.run([sys.executable, "-c", code], check=True)
