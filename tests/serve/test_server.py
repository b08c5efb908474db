"""Real processes: how a server starts, stops, and outlives a worker."""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest

from offramp.classifier import Classifier
from offramp.cli import COMMANDS
from offramp.errors import BadData, BadPolicy
from offramp.policy import Policy
from offramp.serve.batcher import Limits, Request
from offramp.serve.ladder import FULL_DEPTH
from offramp.serve.server import Settings, bind, load, read_policy, serve

THE_END = {"message": "the end of the log"}
COMMAND = [sys.executable, "-c", "from offramp.cli import main; main()", "serve"]


@dataclass
class Running:
    """A server in a process of its own, whose log is read as it comes."""

    process: subprocess.Popen[str]
    url: str = ""
    lines: Queue[dict[str, Any]] = field(default_factory=Queue)

    def read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.put(json.loads(line) if line.startswith("{") else {"message": line})
        self.lines.put(THE_END)

    def wait_for(self, message: str) -> dict[str, Any]:
        while True:
            line = self.lines.get(timeout=120)
            if line["message"].startswith(message):
                return line
            assert line != THE_END, f"it ended before {message}"

    def workers(self, count: int) -> list[int]:
        lines = [self.wait_for("Started server process") for _ in range(count)]
        return [int(line["message"].split("[")[1].rstrip("]")) for line in lines]

    def answers(self) -> bool:
        """In a connection of its own, which any worker may take."""
        try:
            return httpx.get(f"{self.url}/health", timeout=60).status_code == 200
        except httpx.ConnectError:
            return False


@contextmanager
def running(*arguments: Any) -> Iterator[Running]:
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    server = Running(process)
    threading.Thread(target=server.read, daemon=True).start()
    try:
        server.url = server.wait_for("serving at")["url"]
        until(server.answers)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)


def until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(4000):
        if happened():
            return
        pause.wait(0.05)
    pytest.fail("it never happened")


def ask(url: str, texts: Any) -> httpx.Response:
    return httpx.post(f"{url}/predict", json={"texts": texts}, timeout=120)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("saved", signal.SIGTERM), ("exported", signal.SIGTERM), ("exported", signal.SIGINT)],
)
def test_stopped_under_load_it_answers_all_that_was_accepted_and_ends_in_order(
    request: pytest.FixtureRequest, kind: str, number: signal.Signals
) -> None:
    folder = request.getfixturevalue(kind)
    with running(folder, "--threads", 1) as server, ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(ask, server.url, ["a b c d e f g h"] * 60) for _ in range(8)]
        until(lambda: working(server.url) or all(each.done() for each in asked))
        server.process.send_signal(number)
        assert [each.result().status_code for each in asked] == [200] * 8
        assert all(len(each.result().json()["predictions"]) == 60 for each in asked)
        assert server.process.wait(timeout=60) == 0
        assert not server.answers()


@pytest.mark.parametrize("kind", ["saved", "exported"])
def test_what_there_is_no_time_to_answer_is_told_so_and_the_server_ends_in_order(
    request: pytest.FixtureRequest, kind: str
) -> None:
    folder = request.getfixturevalue(kind)
    hasty = ["--threads", 1, "--window", 1, "--max-waiting", 8000, "--drain-seconds", 0]
    with running(folder, *hasty) as server, ThreadPoolExecutor() as clients:
        asked = clients.submit(ask, server.url, ["a"] * 8000)
        until(lambda: working(server.url) or asked.done())
        server.process.send_signal(signal.SIGTERM)
        assert asked.result().status_code == 503
        assert "stopped" in asked.result().json()["error"]
        assert server.process.wait(timeout=60) == 0
        log = [*iter(partial(server.lines.get, timeout=60), THE_END)]
        assert "Traceback" not in str(log)


def working(url: str) -> bool:
    """Whether many of the texts are in."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    waiting = next(float(line.split()[1]) for line in lines if line.startswith("offramp_waiting_texts "))
    return waiting >= 7 * 60


def test_a_killed_worker_comes_back_while_the_other_answers(exported: Path) -> None:
    with running(exported, "--workers", 2) as server:
        first, other = server.workers(2)
        os.kill(first, signal.SIGKILL)
        for _ in range(20):
            assert ask(server.url, "good film").status_code == 200
        (third,) = server.workers(1)
        assert third not in (first, other)
        os.kill(other, signal.SIGKILL)  # now only the new one can answer
        until(server.answers)
        assert ask(server.url, "good film").status_code == 200
        counted = httpx.get(f"{server.url}/metrics").text
        assert 'offramp_requests_total{status="200"} 21.0' in counted, (
            "what a dead worker counted still counts"
        )
        environment = Path(f"/proc/{third}/environ").read_text().split("\0")
        told = dict(line.split("=", 1) for line in environment if line)
        Path(told["PROMETHEUS_MULTIPROC_DIR"], "broken-0").touch()  # as a worker does whose audit says so
        until(lambda: ask(server.url, "good film").json()["rung"] == FULL_DEPTH)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


def test_flags_default_to_pythons() -> None:
    flags = {name: each.default for name, each in inspect.signature(COMMANDS["serve"]).parameters.items()}
    settings, limits = Settings(Path(), ""), Limits()
    assert (flags["max_waiting"], flags["max_waiting_tokens"]) == (limits.items, limits.tokens)
    assert (flags["window"], flags["max_body"]) == (limits.window, settings.body_limit)
    for name in ("audit_share", "drain_seconds", "log_texts", "max_length", "policy", "threads"):
        assert flags[name] == getattr(settings, name)
    server = inspect.signature(serve).parameters
    assert all(flags[name] == server[name].default for name in ("host", "port", "workers"))


def failing(*arguments: Any) -> str:
    """What a server says that cannot start."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_port_in_use_and_a_wrong_policy_are_told_in_a_line(exported: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: Address already in use" in failing(exported, "--port", port)
    assert "confidence" in failing(exported, "--port", 0, "--policy", "confidense:0.9")


def test_workers_that_cannot_start_are_not_tried_for_ever(exported: Path) -> None:
    said = failing(exported, "--port", 0, "--workers", 2, "--policy", "confidense:0.9")
    assert "confidence" in said
    assert "no worker could start" in said


def test_a_key_that_is_not_there_is_an_error_rather_than_no_key(exported: Path) -> None:
    assert "NO_SUCH_KEY" in failing(exported, "--api-key-env", "NO_SUCH_KEY")


def certified(classifier: Classifier, text: str, **other: Any) -> Policy:
    """As calibration makes it for this model."""
    about = {
        "fingerprint": classifier.stages.about()["fingerprint"],
        "precision": classifier.stages.precision,
    }
    promise = {"policy": text, "of": "disagreement", "epsilon": 0.1, **about, **other}
    return replace(Policy.parse(text), certificate=promise)


def test_a_ladder_is_read_from_what_calibrate_prints_and_from_saved_policies(
    saved: Path, classifier: Classifier, tmp_path: Path
) -> None:
    lax = certified(classifier, "confidence:0.6")
    printed, stored = tmp_path / "printed.json", tmp_path / "stored.json"
    printed.write_text(json.dumps({"policy": str(lax), "certificate": lax.certificate, "stored": False}))
    stored.write_text(json.dumps(lax.to_json()))
    assert read_policy(printed) == read_policy(stored) == lax
    batcher, allowed = load(Settings(saved, "colours", ladder=(printed,), allow=("never",)))
    assert [str(policy) for policy in batcher.ladder.rungs] == ["confidence:0.775", "confidence:0.6"]
    assert list(allowed) == ["confidence:0.775", "confidence:0.6", "never"]
    batcher.drain(10)


def test_a_rung_that_is_proven_for_another_model_is_refused(
    saved: Path, classifier: Classifier, tmp_path: Path
) -> None:
    other = certified(classifier, "confidence:0.6", fingerprint="another")
    (tmp_path / "other.json").write_text(json.dumps(other.to_json()))
    with pytest.raises(BadPolicy, match="another"):
        load(Settings(saved, "colours", ladder=(tmp_path / "other.json",)))


@pytest.mark.parametrize("unsaid", ["policy", "fingerprint", "precision"])
def test_a_rung_whose_certificate_does_not_say_what_it_speaks_of_is_refused(
    saved: Path, classifier: Classifier, tmp_path: Path, unsaid: str
) -> None:
    hollow = certified(classifier, "confidence:0.6", **{unsaid: None})
    (tmp_path / "hollow.json").write_text(json.dumps(hollow.to_json()))
    with pytest.raises(BadPolicy, match=f"for which {unsaid}"):
        load(Settings(saved, "colours", ladder=(tmp_path / "hollow.json",)))


def test_texts_are_cut_at_the_servers_own_length(saved: Path) -> None:
    batcher, _ = load(Settings(saved, "colours", max_length=8))
    with pytest.raises(BadData, match="8 tokens"):
        batcher.submit(Request(["a b c d e f g h"], truncate=False))
    batcher.submit(Request(["a b c d e f g h"])).result(60)
    assert batcher.counters.tokens == 8
    batcher.drain(10)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"policy": "layer:1", "certificate": "yes"}',
        '{"policy": 5, "certificate": null}',
        '{"criterion": 5}',
    ],
)
def test_a_file_that_holds_no_policy_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "rung.json").write_text(content)
    with pytest.raises(Exception, match=r"polic|rule") as refusal:
        read_policy(tmp_path / "rung.json")
    assert type(refusal.value).__module__ == "offramp.errors"


def test_answers_are_sent_at_once_and_not_gathered() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY where it sees this
