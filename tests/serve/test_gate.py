"""Under load, requests are refused before uvicorn reads them, and the others wait for their turn."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import h11
import httpx
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from offramp.serve import network
from offramp.serve.batcher import Limits
from offramp.serve.logs import RequestLog
from offramp.serve.network import (
    LET_IN_AT_ONCE,
    REFUSED_AT_ONCE,
    Gate,
    LimitedConnection,
    bind,
    whole_request,
)
from offramp.serve.protocols import shape_of
from offramp.serve.server import OnlyProbes, ProbeServer

Serve = Callable[..., Any]
Until = Callable[[Callable[[], bool]], None]
HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"


def post(path: str = "/predict", body: bytes = b'{"texts": "good"}', *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def connect(server: Any, data: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    client.sendall(data)
    return client


def read(client: socket.socket) -> httpx.Response:
    """One response."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += client.recv(1 << 16)
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = httpx.Headers([tuple(line.split(": ", 1)) for line in lines])  # type: ignore[misc]
    while len(body) < int(headers["content-length"]):
        body += client.recv(1 << 16)
    return httpx.Response(int(first.split()[1]), headers=headers, content=body)


@contextmanager
def full(server: Any, door: Any, until: Until) -> Iterator[None]:
    """The queue holds as many texts as it can; they are answered afterwards."""
    door.shut()
    clients = [connect(server, post())]
    assert door.reached.wait(60)
    clients.append(
        connect(server, post(body=json.dumps({"texts": ["a"] * server.batcher.limits.items}).encode()))
    )
    until(lambda: server.batcher.waiting.items == server.batcher.limits.items)
    yield
    door.is_open.set()
    assert [read(client).status_code for client in clients] == [200, 200]


@pytest.fixture
def no_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for predictions that uvicorn reads is a failure."""
    handle = LimitedConnection.handle_events

    def refuse(self: Any) -> None:
        assert not self.conn.trailing_data[0].startswith(b"POST")
        handle(self)

    monkeypatch.setattr(LimitedConnection, "handle_events", refuse)


def test_a_full_server_refuses_without_uvicorn_and_the_connection_goes_on(
    serve: Serve, door: Any, until: Until, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    server = serve(limits=Limits(items=2))
    client = connect(server, HEALTH)
    assert read(client).status_code == 200
    with full(server, door, until):
        request.getfixturevalue("no_uvicorn")
        for id in ("one", "two"):
            client.sendall(post("/predict", b"not even JSON", f"X-Request-ID: {id}"))
            refused = read(client)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-request-id"] == id == refused.json()["id"]
            assert "the queue is full" in refused.json()["error"]
            assert "date" in refused.headers
        client.sendall(HEALTH)
        assert read(client).json() == {"status": "ok"}
        monkeypatch.undo()
    client.sendall(post())
    assert read(client).status_code == 200
    assert 'offramp_requests_total{status="429"} 2.0' in server.client.get("/metrics").text


def test_requests_on_new_connections_are_refused_as_they_are_accepted(
    serve: Serve, door: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(limits=Limits(items=2))
    with full(server, door, until):
        made = []
        monkeypatch.setattr(LimitedConnection, "connection_made", lambda *_: made.append(1))
        with server.loop.hold():
            clients = [connect(server, post()) for _ in range(2 * REFUSED_AT_ONCE)]
        responses = [read(client) for client in clients]
        assert {each.status_code for each in responses} == {429}
        assert {each.headers["connection"] for each in responses} == {"close"}
        assert [client.recv(1) for client in clients] == [b""] * len(clients)
        assert not made
        monkeypatch.undo()


def test_requests_that_are_refused_unread_share_one_line_of_the_log(
    serve: Serve, door: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="offramp")
    server = serve(limits=Limits(items=2))

    def lines() -> list[dict[str, Any]]:
        fields = [getattr(record, "fields", {}) for record in caplog.records]
        return [each for each in fields if "refused" in each]

    with full(server, door, until):
        for _ in range(20):
            assert read(connect(server, post())).status_code == 429
        until(lambda: sum(each["refused"] for each in lines()) == 20)
    assert len(lines()) < 20
    assert {(each["status"], each["error"]) for each in lines()} == {(429, "Overloaded")}


@pytest.mark.parametrize(
    ("path", "keys", "status"),
    [
        ("/predict", {"error", "error_type", "id"}, 429),
        ("/v1/rerank?a=b", {"message", "detail", "error"}, 429),
        ("/classify", {"error", "error_type"}, 429),
        ("/v2/models/colours/infer", {"error"}, 429),
        ("/v2/models/col%6Furs/versions/1/infer", {"error"}, 429),
        ("/nowhere", {"error", "id"}, 404),
        ("/health", {"error", "id"}, 405),
    ],
)
def test_a_refusal_has_the_shape_of_the_protocol(
    serve: Serve, door: Any, until: Until, path: str, keys: set[str], status: int
) -> None:
    server = serve(limits=Limits(items=2))
    with full(server, door, until):
        with server.loop.hold():
            client = connect(server, post(path))
        for _ in range(2):
            refused = read(client)
            assert refused.status_code == status
            assert refused.json().keys() == keys
            client = connect(server)
            client.sendall(post(path))


@pytest.mark.parametrize(
    "data",
    [
        post().replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
        post().replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"),
        post().replace(b"Content-Length: ", b"Content-Length: +"),
        post().replace(b"\r\nHost", b"\r\n Host"),
        post().replace(b"\r\nHost: here", b""),
    ],
)
def test_what_is_not_plainly_one_request_is_left_to_uvicorn_also_by_a_full_server(
    serve: Serve, door: Any, until: Until, data: bytes
) -> None:
    server = serve(limits=Limits(items=2))
    with full(server, door, until):
        client = connect(server, data)
        assert client.recv(1000).startswith(b"HTTP/1.1 4")
        received = b"".join(iter(lambda: client.recv(1000), b""))  # until it is closed
        assert b"HTTP/1.1" not in received


def test_a_head_in_parts_and_two_requests_at_once_are_answered_by_a_full_server(
    serve: Serve, door: Any, until: Until
) -> None:
    server = serve(limits=Limits(items=2))
    with full(server, door, until):
        client = connect(server, HEALTH)
        assert read(client).status_code == 200
        client.sendall(post()[:30])
        client.sendall(post()[30:])
        assert read(client).status_code == 429
        client.sendall(post() + HEALTH)
        received = b""
        while b'"ok"' not in received:
            received += client.recv(1000)
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"429", b"200"]


TOKEN = st.text("abcXYZ-:\t \r\n0", max_size=6)
LINES = st.lists(
    st.one_of(
        st.just("Host: here"),
        st.just("Content-Length: 2"),
        st.sampled_from(
            ["Content-Length: 02", "content-length:2 ", "Content-Length: 1", "Connection: close"]
        ),
        st.sampled_from(["Transfer-Encoding: chunked", "Expect: 100-continue", "Upgrade: x", "X: \x00"]),
        st.builds("{}: {}".format, TOKEN, TOKEN),
        TOKEN,
    ),
    max_size=5,
)


@given(
    LINES,
    st.sampled_from(["POST /a%20b?c=1 HTTP/1.1", "POST  / HTTP/1.1", "POST / HTTP/1.0", "POST /\tHTTP/1.1"]),
    st.sampled_from([b"", b"{}", b"{}{", b"\r\n"]),
)
def test_what_the_gate_takes_for_a_whole_request_is_one_for_h11_too(
    lines: list[str], first: str, body: bytes
) -> None:
    """Otherwise a proxy before the server could be led to mix up the requests of its clients."""
    data = "\r\n".join([first, "Host: here", *lines, "", ""]).encode("latin-1") + body
    scope = whole_request(data)
    if scope is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert scope["path"] == "/a b"
    assert [*request.headers] == [(name, value) for name, value in scope["headers"]]
    received = b""
    while isinstance(event := connection.next_event(), h11.Data):
        received += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert received == body
    assert connection.trailing_data[0] == b""


def test_an_ordinary_request_is_taken() -> None:
    scope = whole_request(post("/predict?x=1", b"{}", "Accept: */*", "Connection: keep-alive"))
    assert scope is not None
    assert scope["path"] == "/predict"


def test_only_a_few_requests_are_let_in_in_one_turn_of_the_loop_and_in_order() -> None:
    entered: list[int] = []
    turns: list[int] = []

    class Waiting:
        def __init__(self, number: int) -> None:
            self.let_in = partial(entered.append, number)

    async def run() -> None:
        door = Gate(lambda _: None, shape_of, RequestLog(uvicorn, print))  # type: ignore[arg-type]
        for number in range(3 * LET_IN_AT_ONCE + 1):
            door.wait_for_turn(Waiting(number))
        while door.waiting:
            turns.append(len(entered))
            await asyncio.sleep(0)

    asyncio.run(run())
    assert turns == [0, LET_IN_AT_ONCE, 2 * LET_IN_AT_ONCE, 3 * LET_IN_AT_ONCE]
    assert entered == [*range(3 * LET_IN_AT_ONCE + 1)]


@pytest.fixture
def shut_gate(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nobody is let in until it is undone."""
    monkeypatch.setattr(network, "LET_IN_AT_ONCE", 0)
    return monkeypatch


def test_requests_that_wait_for_their_turn_take_room(
    serve: Serve, shut_gate: pytest.MonkeyPatch, until: Until
) -> None:
    server = serve(limits=Limits(items=3))
    clients = []
    for number in range(3):
        clients.append(connect(server, post()))
        until(lambda number=number: len(server.gate.waiting) == number + 1)  # type: ignore[misc]
    assert read(connect(server, post())).status_code == 429
    assert server.client.get("/health").status_code == 200
    shut_gate.undo()
    assert [read(client).status_code for client in clients] == [200] * 3


def test_what_arrives_while_a_request_waits_for_its_turn_is_kept(
    serve: Serve, shut_gate: pytest.MonkeyPatch, until: Until
) -> None:
    by_age: dict[LimitedConnection, None] = {}
    server = serve(connections={"by_age": by_age, "header_seconds": 0.05})
    client = connect(server, post()[:-5])
    until(lambda: bool(server.gate.waiting))
    (connection,) = by_age
    client.sendall(post()[-5:] + HEALTH)
    until(lambda: bytes(connection.held or b"").endswith(HEALTH))
    shut_gate.undo()
    assert read(client).status_code == 200


def test_a_client_that_disconnects_while_it_waits_for_its_turn_is_forgotten(
    serve: Serve, shut_gate: pytest.MonkeyPatch, until: Until
) -> None:
    by_age: dict[LimitedConnection, None] = {}
    server = serve(connections={"by_age": by_age})
    client = connect(server, post())
    until(lambda: bool(server.gate.waiting))
    client.close()
    until(lambda: not by_age)
    shut_gate.undo()
    until(lambda: not server.gate.waiting)
    assert server.ask("good").status_code == 200
    assert 'offramp_requests_total{status="499"}' not in server.client.get("/metrics").text


def test_a_deadline_counts_from_the_arrival_at_the_gate(
    serve: Serve, shut_gate: pytest.MonkeyPatch, until: Until
) -> None:
    server = serve()
    client = connect(server, post(body=b'{"texts": "good", "deadline_ms": 5, "policy": "never"}'))
    until(lambda: bool(server.gate.waiting))
    threading.Event().wait(0.01)
    shut_gate.undo()
    assert read(client).json()["predictions"][0]["layer"] == server.batcher.runner.runtime.info.exits[0]


def test_probes_on_a_port_of_their_own_are_answered_while_the_other_loop_is_stuck(
    serve: Serve, until: Until
) -> None:
    server = serve()
    server.ask("good")
    http: Any = partial(LimitedConnection, most=10, header_seconds=60, by_age={})
    config = uvicorn.Config(OnlyProbes(server.app), log_config=None, ws="none", http=http, lifespan="off")
    listener = bind("127.0.0.1", 0)
    probes = ProbeServer(config, listener)
    probes.start()
    until(lambda: probes.server.started)
    with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
        with server.loop.hold():
            for path in ("/health", "/ready", "/metrics", "/ping", "/v2/health/live"):
                assert client.get(path).status_code == 200
        assert "offramp_requests_total" in client.get("/metrics").text
        for path in ("/", "/info", "/docs", "/openapi.json", "/v2"):
            assert client.get(path).status_code == 404
        assert client.post("/predict", json={"texts": "good"}).status_code == 404
    probes.stop()
    assert not probes.is_alive()
