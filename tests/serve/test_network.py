"""Clients that are silent, slow or sent from elsewhere never keep others out."""

import gzip
import json
import logging.config
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from offramp.errors import BadOption
from offramp.serve.batcher import Limits
from offramp.serve.logs import LOGGING
from offramp.serve.network import OWN_FILES, LimitedConnection, connection_limit
from offramp.serve.security import ANY, LOOPBACK, default_hosts

Serve = Callable[..., Any]
Until = Callable[[Callable[[], bool]], None]
HEAD = b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

HEAD_HEALTH = b"HEAD /health HTTP/1.1\r\nHost: here\r\n\r\n"


def connect(server: Any, data: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    client.sendall(data)
    return client


def response(client: socket.socket) -> str:
    """The status line; empty if the server closed the connection without a response."""
    try:
        return client.recv(1000).decode().partition("\r\n")[0]
    except ConnectionResetError:
        return ""


def test_at_the_limit_a_new_connection_replaces_the_one_that_was_silent_longest(serve: Serve) -> None:
    server = serve(connections={"most": 5})
    silent = [connect(server) for _ in range(20)]
    assert server.client.get("/health").status_code == 200
    assert [response(client) for client in silent[:15]] == [""] * 15
    silent[-1].sendall(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
    assert response(silent[-1]) == "HTTP/1.1 200 OK"


def test_requests_in_progress_are_not_closed_for_new_connections(serve: Serve, door: Any) -> None:
    server = serve(connections={"most": 3})
    door.shut()
    body = json.dumps({"texts": "good"}).encode()
    asking = connect(server, HEAD % len(body) + body)
    assert door.reached.wait(60)
    unfinished = [connect(server, HEAD % 100 + b"{") for _ in range(10)]
    assert [response(client) for client in unfinished[:7]] == [""] * 7
    door.is_open.set()
    assert response(asking) == "HTTP/1.1 200 OK"


def test_requests_that_came_with_a_burst_of_connections_are_all_answered(serve: Serve) -> None:
    server = serve(connections={"most": 5})
    request = b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    with server.loop.hold():
        clients = [connect(server, request) for _ in range(50)]
    assert [response(client) for client in clients] == ["HTTP/1.1 200 OK"] * 50


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_request_that_arrived_while_the_server_had_no_cpu_is_answered_though_its_time_is_over(
    serve: Serve, earlier: int, until: Until
) -> None:
    by_age: dict[LimitedConnection, None] = {}
    server = serve(connections={"by_age": by_age})
    client = connect(server)
    until(lambda: bool(by_age))
    for _ in range(earlier):  # then the connection is kept, which has a time limit of its own
        client.sendall(HEAD_HEALTH)
        assert response(client) == "HTTP/1.1 200 OK"
    with no_cpu(server):
        client.sendall(HEAD_HEALTH)
    assert response(client) == "HTTP/1.1 200 OK"


def test_a_body_that_arrived_while_the_server_had_no_cpu_is_answered_though_its_time_is_over(
    serve: Serve, until: Until
) -> None:
    by_age: dict[LimitedConnection, None] = {}
    body = json.dumps({"texts": "good"}).encode()
    server = serve(connections={"by_age": by_age})
    client = connect(server, HEAD % len(body) + body[:5])
    until(lambda: any(connection.cycle for connection in [*by_age]))
    with no_cpu(server):
        client.sendall(body[5:])
    assert response(client) == "HTTP/1.1 200 OK"


@contextmanager
def no_cpu(server: Any) -> Iterator[None]:
    """The server's thread does not run meanwhile; afterwards all time limits have passed."""
    with server.loop.hold():
        yield
        server.loop.ahead = 1000.0


def test_a_response_is_not_lost_if_the_server_closes_before_it_has_read_everything(
    serve: Serve, until: Until
) -> None:
    by_age: dict[LimitedConnection, None] = {}
    server = serve(connections={"by_age": by_age})
    client = connect(server)
    until(lambda: bool(by_age))
    with no_cpu(server):
        client.sendall(b"nonsense\r\n\r\n" + b"more" * 500_000)
    received = b"".join(iter(lambda: client.recv(1000), b""))  # a reset would raise
    assert received.startswith(b"HTTP/1.1 400 Bad Request")


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(serve: Serve) -> None:
    body = json.dumps({"texts": "good"}).encode()
    two = (HEAD % len(body)).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    client = connect(serve(), two + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    received = b"".join(iter(lambda: client.recv(1000), b""))  # until it is closed
    assert received.startswith(b"HTTP/1.1 400 Bad Request")
    assert received.count(b"HTTP/1.1") == 1


def test_a_compressed_body_gets_415(server: Any) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused = server.client.post("/predict", content=gzip.compress(b'{"texts": "good"}'), headers=headers)
    assert refused.status_code == 415
    assert "Content-Encoding" in refused.json()["error"]


def test_a_slash_too_many_is_not_redirected_to_the_host_that_the_client_named(server: Any) -> None:
    refused = server.client.post("/predict/", json={"texts": "good"}, headers={"Host": "elsewhere"})
    assert refused.status_code == 404
    assert "elsewhere" not in str(refused.headers)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: here\r\nX-A: b\r\n"]
)
def test_a_connection_without_the_head_of_a_request_is_closed(serve: Serve, sent: bytes) -> None:
    server = serve(connections={"header_seconds": 0.2})
    assert response(connect(server, sent)) == ""
    assert server.client.get("/health").status_code == 200


def test_the_rest_of_a_refused_body_does_not_keep_a_connection_open(serve: Serve) -> None:
    request = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{"
    client = connect(serve(connections={"header_seconds": 0.2}), request)
    assert response(client) == "HTTP/1.1 404 Not Found"
    while response(client):  # its body, and then the end
        pass


def test_a_body_that_does_not_arrive_in_time_gets_408(serve: Serve) -> None:
    server = serve(body_seconds=0.2)
    client = connect(server, HEAD % 100 + b'{"texts"')
    assert response(client) == "HTTP/1.1 408 Request Timeout"
    assert server.ask("good").status_code == 200


def test_unfinished_bodies_have_a_limit_in_all_and_the_oldest_is_given_up_first(serve: Serve) -> None:
    server = serve(max_body=1000, body_seconds=600)
    clients = [connect(server, HEAD % 1000 + b" " * 999) for _ in range(40)]  # 32 of them are kept
    assert [response(client) for client in clients[:8]] == ["HTTP/1.1 408 Request Timeout"] * 8
    assert server.ask("good").status_code == 200
    clients[-1].sendall(b"x")
    assert response(clients[-1]) == "HTTP/1.1 400 Bad Request"  # complete, and not JSON


def test_a_small_request_is_refused_before_it_is_parsed_if_nothing_fits(
    serve: Serve, door: Any, until: Until
) -> None:
    server = serve(limits=Limits(items=2))
    door.shut()
    bodies = [json.dumps({"texts": texts}).encode() for texts in ("good", ["a", "b"])]
    running = connect(server, HEAD % len(bodies[0]) + bodies[0])
    assert door.reached.wait(60)
    waiting = connect(server, HEAD % len(bodies[1]) + bodies[1])
    until(lambda: server.batcher.waiting.items == 2)
    assert response(connect(server, HEAD % 5 + b"wrong")) == "HTTP/1.1 429 Too Many Requests"
    door.is_open.set()
    assert {response(client) for client in (running, waiting)} == {"HTTP/1.1 200 OK"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example:8000", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_a_server_for_this_machine_accepts_only_its_own_names(serve: Serve, host: str, status: int) -> None:
    server = serve(allowed_host=default_hosts("127.0.0.1"))
    for path in ("/", "/health", "/info"):
        found = server.client.get(path, headers={"Host": host})
        assert found.status_code == status
    if status == 421:
        assert "--allowed-host" in found.json()["error"]
        assert found.json()["id"] == found.headers["x-request-id"]


def test_other_hosts_can_be_allowed_and_servers_for_all_accept_any(serve: Serve) -> None:
    server = serve(allowed_host=["films.example"])
    assert server.client.get("/health", headers={"Host": "films.example:443"}).status_code == 200
    assert server.client.get("/health").status_code == 421
    assert default_hosts("::1") == default_hosts("127.0.0.2") == LOOPBACK
    assert default_hosts("0.0.0.0") == default_hosts("::") == default_hosts("192.168.1.5") == [ANY]


def test_probes_may_ask_with_head(server: Any) -> None:
    for path in ("/health", "/ready"):
        found = server.client.head(path)
        assert (found.status_code, found.content) == (200, b"")


def test_connections_leave_enough_files_for_the_rest_or_the_limit_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import resource

    now = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: now.append(limits))
    assert connection_limit(None, 512) == 2048
    assert now.pop() == (2048 + OWN_FILES, 4096)
    assert connection_limit(500, 512) == 500
    assert now == [(1024, 4096)]
    assert connection_limit(None, 8000) == 4096 - OWN_FILES
    assert now.pop() == (4096, 4096)
    assert connection_limit(2000, 512) == 2000
    assert now.pop() == (2000 + OWN_FILES, 4096)
    with pytest.raises(BadOption, match="max_connections=5000 needs 5256 open files and 4096 are allowed"):
        connection_limit(5000, 512)


def test_accept_errors_are_logged_once_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logging.config.dictConfig(LOGGING)
    for _ in range(1000):
        error = OSError(24, "Too many open files")
        logging.getLogger("asyncio").error("socket.accept() out of system resource", exc_info=error)
    [line] = capsys.readouterr().err.splitlines()
    assert "Too many open files" in json.loads(line)["exception"]
