"""Real processes: how a server starts, stops, and survives a dead worker."""

import gc
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import fakes
import httpx
import pytest
from fastapi import FastAPI
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadData, BadOption, BadPolicy, CannotLoad, Incompatible
from offramp.inference import Classifier
from offramp.models.exit_model import ExitModel
from offramp.policy import Policy
from offramp.serve.batcher import Request
from offramp.serve.ladder import FULL_DEPTH
from offramp.serve.network import OWN_FILES, bind
from offramp.serve.options import ServerOptions
from offramp.serve.protocols.base import WorkerState
from offramp.serve.server import Listeners, Server, audit_folder, load, modules_for, read_rung, run_app

Until = Callable[[Callable[[], bool]], None]
Run = Callable[..., "AbstractContextManager[Running]"]
THE_END = {"message": "the end of the log"}
COMMAND = [sys.executable, "-c", "from offramp.cli import main; main()", "serve"]


@dataclass
class Running:
    """A server process, whose log is read as it comes."""

    process: subprocess.Popen[str]
    temporary: Path
    url: str = ""
    probes: str = ""
    lines: Queue[dict[str, Any]] = field(default_factory=Queue)
    started: Queue[int] = field(default_factory=Queue)
    """The processes that serve."""

    def read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            record = json.loads(line) if line.startswith("{") else {"message": line}
            if record["message"].startswith("Started server process"):
                self.started.put(int(record["message"].split("[")[1].rstrip("]")))
            self.lines.put(record)
        self.lines.put(THE_END)

    def wait_for(self, message: str) -> dict[str, Any]:
        while True:
            line = self.lines.get(timeout=120)
            if line["message"].startswith("probes at"):
                self.probes = line["url"]
            if line["message"].startswith(message):
                return line
            assert line != THE_END, f"it ended before {message}"

    def workers(self, count: int) -> list[int]:
        return [self.started.get(timeout=120) for _ in range(count)]

    def shared_folder(self) -> Path:
        (folder,) = self.temporary.glob("offramp-serve-*")
        return folder

    def answers(self) -> bool:
        """In a new connection, which any worker may take."""
        try:
            return httpx.get(f"{self.url}/health", timeout=60).status_code == 200
        except httpx.ConnectError:
            return False


@pytest.fixture
def running(until: Until) -> Run:
    """running(folder, "--workers", 2) -> a server that ends with the block."""

    @contextmanager
    def run(*arguments: Any) -> Iterator[Running]:
        temporary = Path(tempfile.mkdtemp())  # short, as it will contain a socket
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
        )
        server = Running(process, temporary)
        threading.Thread(target=server.read, daemon=True).start()
        try:
            server.url = server.wait_for("serving at")["url"]
            until(server.answers)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)
            shutil.rmtree(temporary, ignore_errors=True)

    return run


def ask(url: str, texts: Any) -> httpx.Response:
    return httpx.post(f"{url}/predict", json={"texts": texts}, timeout=120)


@pytest.mark.parametrize(("model", "number"), [("saved", signal.SIGTERM), ("exported", signal.SIGINT)])
def test_stopped_under_load_it_answers_all_accepted_requests_and_exits_with_0(
    running: Run, request: pytest.FixtureRequest, model: str, number: signal.Signals, until: Until
) -> None:
    with running(request.getfixturevalue(model), "--threads", 1) as server, ThreadPoolExecutor(8) as clients:
        futures = [clients.submit(ask, server.url, ["a b c d e f g h"] * 60) for _ in range(8)]
        until(lambda: working(server.url) or all(each.done() for each in futures))
        server.process.send_signal(number)
        assert [each.result().status_code for each in futures] == [200] * 8
        assert all(len(each.result().json()["predictions"]) == 60 for each in futures)
        assert server.process.wait(timeout=60) == 0
        assert not server.answers()


def test_requests_that_there_is_no_time_to_answer_get_503_and_the_server_exits_with_0(
    running: Run, exported: Path, until: Until
) -> None:
    hasty = ["--threads", 1, "--window", 1, "--max-waiting", 8000, "--drain-seconds", 0]
    with running(exported, *hasty) as server, ThreadPoolExecutor() as clients:
        future = clients.submit(ask, server.url, ["a"] * 8000)
        until(lambda: working(server.url) or future.done())
        server.process.send_signal(signal.SIGTERM)
        assert future.result().status_code == 503
        assert "stopped" in future.result().json()["error"]
        assert server.process.wait(timeout=60) == 0
        log = [*iter(partial(server.lines.get, timeout=60), THE_END)]
        assert "Traceback" not in str(log)


def working(url: str) -> bool:
    """Whether texts of all eight requests are in the queue, or most of a large one."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    waiting = next(float(line.split()[1]) for line in lines if line.startswith("offramp_waiting_texts "))
    return waiting > 7 * 60


def test_a_killed_worker_is_replaced_while_the_other_answers(
    running: Run, exported: Path, tmp_path: Path, until: Until
) -> None:
    with running(exported, "--workers", 2, "--audit-share", 1, "--audit-folder", tmp_path) as server:
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
            "the counters of a dead worker are kept"
        )
        until(lambda: len([*tmp_path.glob("*.json")]) == 1)  # one text was sent
        (account,) = tmp_path.glob("*.json")
        found = json.loads(account.read_text())
        assert found["tallies"][""]["examined"] == 1
        account.write_text(json.dumps(found | {"broken": "it differs"}))  # as a worker writes that finds it
        until(lambda: ask(server.url, "good film").json()["rung"] == FULL_DEPTH)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


def test_while_a_killed_worker_cannot_be_replaced_the_server_answers_but_is_not_ready(
    running: Run, exported: Path, until: Until
) -> None:
    with running(exported, "--workers", 2) as server:

        def is_ready() -> bool:
            return httpx.get(f"{server.url}/ready", timeout=60).status_code == 200

        first, _ = server.workers(2)
        forks, (_, hard) = parent_of(first), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(forks, resource.RLIMIT_FSIZE, (0, hard))  # its next workers cannot write files
        assert is_ready()
        os.kill(first, signal.SIGKILL)
        for seconds in (1, 2):
            message = server.wait_for("worker")["message"]
            while "died with SIGKILL" in message:
                message = server.wait_for("worker")["message"]
            assert f"trying again in {seconds} s: " in message
            assert "File too large" in message
        until(lambda: not is_ready())
        assert httpx.get(f"{server.url}/v2/health/ready").status_code == 503
        assert "offramp_healthy 0.0" in httpx.get(f"{server.url}/metrics").text
        assert ask(server.url, "good film").status_code == 200
        resource.prlimit(forks, resource.RLIMIT_FSIZE, (hard, hard))
        server.wait_for("all 2 workers serve again")
        until(is_ready)


def test_a_stopped_worker_delays_neither_the_replacement_of_another_nor_the_end(
    running: Run, exported: Path, until: Until
) -> None:
    with running(exported, "--workers", 2, "--drain-seconds", 1) as server:
        stopped, killed = server.workers(2)
        os.kill(stopped, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        server.workers(1)
        until(server.answers)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert not is_alive(stopped)


def test_workers_end_and_leave_nothing_when_their_parent_is_killed(
    running: Run, exported: Path, until: Until
) -> None:
    with running(exported, "--workers", 2) as server:
        workers = server.workers(2)
        assert server.shared_folder().is_dir()
        server.process.kill()
        until(lambda: not any(map(is_alive, workers)))
        assert not server.answers()
        assert not [*server.temporary.glob("[!.]*")]


def test_workers_are_replaced_when_the_process_that_forks_them_is_killed(
    running: Run, exported: Path, until: Until
) -> None:
    with running(exported, "--workers", 2) as server:
        workers = server.workers(2)
        os.kill(parent_of(workers[0]), signal.SIGKILL)
        others = server.workers(2)
        assert not {*workers} & {*others}
        until(lambda: not any(map(is_alive, workers)))
        assert ask(server.url, "good film").status_code == 200
        logged = server.lines.qsize()
        os.kill(parent_of(others[0]), signal.SIGTERM)  # has no effect on the second one either
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert not any("died" in line["message"] for line in [*server.lines.queue][logged:])


def test_a_signal_to_all_processes_of_a_server_still_lets_them_answer(
    running: Run, exported: Path, until: Until
) -> None:
    slow = ["--threads", 1, "--window", 1, "--max-waiting", 8000]
    with running(exported, "--workers", 2, *slow) as server, ThreadPoolExecutor() as clients:
        workers = server.workers(2)
        future = clients.submit(ask, server.url, ["a"] * 1000)
        until(lambda: working(server.url) or future.done())
        for process in (parent_of(workers[0]), *workers, server.process.pid):
            os.kill(process, signal.SIGTERM)
        assert future.result().status_code == 200
        assert server.process.wait(timeout=60) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_while_requests_are_finished_new_connections_are_refused(
    running: Run, exported: Path, workers: int, until: Until
) -> None:
    slow = ["--threads", 1, "--window", 1, "--max-waiting", 8000, "--drain-seconds", 60, "--probe-port", 0]
    with running(exported, "--workers", workers, *slow) as server, ThreadPoolExecutor() as clients:
        assert httpx.get(f"{server.probes}/ready").status_code == 200
        future = clients.submit(ask, server.url, ["a"] * 8000)
        until(lambda: working(server.url) or future.done())
        server.process.send_signal(signal.SIGTERM)
        host, port = server.url.removeprefix("http://").split(":")
        outcomes, resets = set[str](), list[int]()

        def refused() -> bool:
            try:
                with socket.create_connection((host, int(port)), timeout=60) as client:
                    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    outcomes.add(client.recv(12).decode())
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                resets.append(1)
            return False

        until(refused)
        until(lambda: httpx.get(f"{server.probes}/ready").status_code == 503)
        assert httpx.get(f"{server.probes}/health").status_code == 200
        assert not future.done()
        assert outcomes <= {"HTTP/1.1 200"}  # until the signal has arrived
        assert len(resets) <= 1  # the kernel resets one that has not been accepted when the socket is closed
        server.process.kill()  # that the request is answered is tested above


def test_connections_that_no_worker_has_accepted_when_the_server_is_stopped_are_answered(
    running: Run, exported: Path
) -> None:
    with running(exported, "--workers", 2) as server:
        workers = server.workers(2)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        host, port = server.url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(20)]
        for client in clients:
            client.sendall(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.process.send_signal(signal.SIGTERM)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 20
        assert server.process.wait(timeout=60) == 0


def test_a_burst_of_connections_at_the_limit_does_not_use_up_all_open_files(
    running: Run, exported: Path
) -> None:
    """asyncio would accept nothing for a second then, not even /health."""
    with running(exported, "--max-connections", 100) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (100 + OWN_FILES, 100 + OWN_FILES))
        host, port = server.url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(600)]
        assert server.answers()
        server.process.terminate()
        server.process.wait(timeout=60)
        for client in clients:
            client.close()
        lines = iter(lambda: server.lines.get(timeout=60), THE_END)
        assert not [line for line in lines if line.get("level") == "error"]


def test_workers_find_their_modules_imported_but_not_onnxruntime(any_runtime: Path) -> None:
    imports = "\n".join(f"import {name}" for name in modules_for(any_runtime))
    code = f"{imports}\nimport sys; print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])


def is_alive(process: int) -> bool:
    """Whether it has not ended; one that nobody waits for stays in the table of processes as a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def failing(*arguments: Any) -> str:
    """The stderr of a server that cannot start."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_port_in_use_and_a_bad_policy_are_reported_in_one_line(exported: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = failing(exported, "--port", port)
        assert f"--port {port} of 127.0.0.1 cannot be used: Address already in use" in message
        assert f"such as --port {port + 1}" in message
        message = failing(exported, "--port", 0, "--probe-port", port)
        assert f"--probe-port {port} of 127.0.0.1 cannot be used" in message
        assert len(message.splitlines()) == 1, "and no warning of a socket"
    assert "confidence" in failing(exported, "--port", 0, "--policy", "confidense:0.9")


def test_workers_that_cannot_start_are_not_restarted_forever(exported: Path) -> None:
    stderr = failing(exported, "--port", 0, "--workers", 2, "--policy", "confidense:0.9")
    assert "confidence" in stderr
    assert len(stderr.splitlines()) == 1, "and it never says that it serves"


def test_workers_that_die_while_they_load_end_the_server_with_one_line(
    exported: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(exported, tmp_path / "model"))
    (next(model.glob("*.onnx"))).write_bytes(b"damaged")
    assert len(failing(model, "--port", 0, "--workers", 2).splitlines()) == 1


def test_a_missing_key_variable_is_an_error(exported: Path) -> None:
    assert "NO_SUCH_KEY" in failing(exported, "--api-key-env", "NO_SUCH_KEY")


@pytest.fixture
def certified(classifier: Classifier) -> Callable[..., Policy]:
    """certified("entropy:0.3", ...) -> a policy with a certificate for this model."""
    runtime = classifier.runner.runtime
    about = {"fingerprint": runtime.fingerprint(), "precision": runtime.precision}

    return partial(fakes.certified, **about)


def test_an_audit_folder_that_cannot_be_written_is_an_error_and_the_cache_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadOption, match=r"audit_folder=.*/file/audit cannot be written \(Not a directory\)"):
        audit_folder(file / "audit")
    assert audit_folder(tmp_path / "audit") == tmp_path / "audit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert audit_folder(None) == tmp_path / "cache" / "offramp" / "audit"
    assert not caplog.text
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert audit_folder(None) is None
    assert "--audit-folder" in caplog.text


def test_a_ladder_is_read_from_what_calibrate_prints_and_from_saved_policies(
    saved: Path, certified: Callable[..., Policy], tmp_path: Path
) -> None:
    loose = certified("confidence:0.6")
    printed, stored = tmp_path / "printed.json", tmp_path / "stored.json"
    printed.write_text(json.dumps({"policy": str(loose), "saved_policy": loose.to_json(), "stored": False}))
    stored.write_text(json.dumps(loose.to_json()))
    assert read_rung(printed) == read_rung(stored) == loose
    batcher, allowed = load(ServerOptions(str(saved), ladder=[printed], allow=["never"]))
    assert [str(policy) for policy in batcher.ladder.rungs] == ["confidence:0.775", "confidence:0.6"]
    assert list(allowed) == ["confidence:0.775", "confidence:0.6", "never"]
    batcher.drain(10)


def test_a_rung_certified_for_another_model_is_refused(
    saved: Path, certified: Callable[..., Policy], tmp_path: Path
) -> None:
    other = certified("confidence:0.6", fingerprint="another")
    (tmp_path / "other.json").write_text(json.dumps(other.to_json()))
    with pytest.raises(BadPolicy, match="another"):
        load(ServerOptions(str(saved), ladder=[tmp_path / "other.json"]))


@pytest.mark.parametrize("option", ["stored", "policy", "ladder", "allow"])
def test_a_policy_that_the_model_cannot_run_is_refused_at_start_up(
    saved: Path, certified: Callable[..., Policy], tmp_path: Path, option: str
) -> None:
    model, rung = Path(shutil.copytree(saved, tmp_path / "model")), tmp_path / "rung.json"
    rung.write_text(json.dumps(certified("layer:9").to_json()))
    given: dict[str, Any] = {"policy": "layer:9", "ladder": [rung], "allow": ["layer:9"]}
    if option == "stored":
        config = json.loads((model / "config.json").read_text())
        config["policy"] = Policy.parse("layer:9").to_json()
        (model / "config.json").write_text(json.dumps(config))
    options = {option: given[option]} if option in given else {}
    with pytest.raises((Incompatible, CannotLoad), match=r"layer.*9"):
        load(ServerOptions(str(model), **options))


@pytest.mark.parametrize(
    ("policy", "labels", "message"),
    [("gate:0.5", 3, "no gate"), ("agreement:0.9", 3, "not fitted"), ("entropy:0.3", 1, "predicts a number")],
)
@pytest.mark.parametrize("option", ["policy", "allow"])
def test_a_rule_that_does_not_suit_the_model_is_refused_at_start_up(
    make_model: Callable[..., ExitModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    policy: str,
    labels: int,
    message: str,
    option: str,
) -> None:
    make_model(num_labels=labels).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    given: dict[str, Any] = {"policy": policy, "allow": [policy]}
    with pytest.raises(Incompatible, match=message):
        load(ServerOptions(str(tmp_path), **{option: given[option]}))


@pytest.mark.parametrize("missing", ["policy", "fingerprint", "precision"])
def test_a_rung_with_an_incomplete_certificate_is_refused(
    saved: Path, certified: Callable[..., Policy], tmp_path: Path, missing: str
) -> None:
    record = certified("confidence:0.6").to_json()
    del record["certificate"]["conditions"][missing]
    (tmp_path / "hollow.json").write_text(json.dumps(record))
    with pytest.raises(BadPolicy, match=rf"incomplete.*{missing}|has no certificate"):
        load(ServerOptions(str(saved), ladder=[tmp_path / "hollow.json"]))


def test_texts_are_truncated_at_max_length(saved: Path) -> None:
    batcher, _ = load(ServerOptions(str(saved), max_length=8))
    with pytest.raises(BadData, match="8 tokens"):
        batcher.submit(Request(["a b c d e f g h"], truncate=False))
    batcher.submit(Request(["a b c d e f g h"])).result(60)
    assert len(batcher.runner.tokenizer(["a b c d e f g h"])[0].ids) == 8
    batcher.drain(10)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"policy": "layer:1", "certificate": "yes"}',
        '{"policy": 5, "certificate": null}',
        '{"rule": 5}',
    ],
)
def test_a_file_that_is_not_a_policy_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "rung.json").write_text(content)
    with pytest.raises(Exception, match=r"polic|rule") as refusal:
        read_rung(tmp_path / "rung.json")
    assert type(refusal.value).__module__ == "offramp.errors"


def test_responses_are_sent_without_nagles_delay() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY where it sees this


def test_a_server_does_not_search_what_it_has_loaded_for_garbage(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch loaded a full collection takes some 300 ms, in which nothing else runs."""
    before = gc.get_threshold()
    searched: list[int] = []
    monkeypatch.setattr(Server, "run", lambda *_: searched.append(len(gc.get_objects())))
    with bind("127.0.0.1", 0) as listener:
        options, listeners = ServerOptions(str(exported)), Listeners(listener, None, most=10)
        run_app(FastAPI(), None, WorkerState(), options, listeners)
    gc.unfreeze()
    gc.set_threshold(*before)
    assert searched[0] < len(gc.get_objects()) / 100


def test_a_device_that_cannot_run_the_model_is_refused_at_start_up(saved: Path, exported: Path) -> None:
    with pytest.raises(BadOption, match="device='cuda:99' cannot be used"):
        load(ServerOptions(str(saved), device="cuda:99"))
    with pytest.raises(BadOption, match="exported model, which runs on the CPU"):
        load(ServerOptions(str(exported), device="cuda"))
