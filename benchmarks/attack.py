"""Attacks a server of its own on this machine in seven ways, and prints how it held up.

    python benchmarks/attack.py --model FOLDER --texts FILE [--only NAME ...] > attack.jsonl

Connections, requests and times are bounded, and all traffic stays on the loopback interface. FOLDER and FILE are as
for serve.py; every attack starts a server on FOLDER. `folders` needs none: it damages copies of FOLDER.
"""

import argparse
import json
import os
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from shared import about, read_texts
from soak import workers

from serve import (
    Server,
    allow_many_connections,
    closed_loop,
    memory,
    open_loop,
    run_client,
    start_server,
    to_body,
)

OPEN_FILES = 1024
SILENT = 1100
HOLD = 60.0
"""Seconds for which the silent connections are held."""
UNFINISHED = 500
BODY = 1_200_000
"""Bytes of each unfinished body; 590 MB in all."""
LONG = 30
KILLS = 4
DRAIN = 5
FOLDERS = 149
SERVE = [sys.executable, "-m", "offramp", "serve", "--port", "PORT", "--audit-share", "0"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    options = parser.parse_args()
    allow_many_connections()
    load = [to_body(text) for text in read_texts(options.texts)]
    print(json.dumps(about()))
    for name in options.only:
        print(json.dumps({name: ATTACKS[name](options.model, load)}), flush=True)


def silent(model: str, load: list[bytes]) -> dict[str, Any]:
    """Connections that send nothing; those that the server closes are opened again every second."""
    files = ["sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$0" "$@"']
    with start_server([*files, *SERVE, model]) as server, health(server) as asked:
        before, opened, held = log_size(server), 0, dict[int, socket.socket]()
        watch, end = select.poll(), time.monotonic() + HOLD
        while time.monotonic() < end:
            time.sleep(1)
            for number, _ in watch.poll(0):
                watch.unregister(number)
                held.pop(number).close()
            while len(held) < SILENT:
                client = connect(server)
                held[client.fileno()] = client
                watch.register(client, select.POLLIN)
                opened += 1
        close(held.values())
        return {"opened": opened, "log_bytes": log_size(server) - before, "health": asked}


def unfinished(model: str, load: list[bytes]) -> dict[str, Any]:
    """Bodies that lack their last byte."""
    fields = ["Host: localhost", "Content-Type: application/json", f"Content-Length: {BODY}"]
    head = "\r\n".join(["POST /predict HTTP/1.1", *fields, "", ""])
    with start_server([*SERVE, model]) as server, health(server) as asked:
        before, start, clients = memory(server.process.pid), time.monotonic(), list[socket.socket]()
        for _ in range(UNFINISHED):
            clients.append(connect(server))
            with suppress(ConnectionError):
                clients[-1].sendall(head.encode() + b" " * (BODY - 1))
        most = memory(server.process.pid) - before
        answers = Counter(first_line(client) for client in clients)
        seconds = time.monotonic() - start
        close(clients)
        return {"MiB": most, "answers": answers, "all_closed_after_s": seconds, "health": asked}


def killed(model: str, load: list[bytes]) -> dict[str, Any]:
    """Four workers at three times their capacity; one is killed every three seconds."""
    with start_server([*SERVE, model, "--workers", "4", "--threads", "1"]) as server:
        begin_load(server, load)
        found = [seconds_to_replace(server) for _ in range(KILLS)]
    started, served = zip(*found, strict=True)
    return {"replacement_started_s": started, "replacement_served_s": served}


def seconds_to_replace(server: Server) -> tuple[float, float]:
    """Kills the oldest worker; the seconds until another process has started, and until it serves."""
    time.sleep(3)
    before, serving, began = {*workers(server)}, starts(server), time.monotonic()
    os.kill(min(before), signal.SIGKILL)
    started = seconds_until(lambda: {*workers(server)} - before, began)
    return started, seconds_until(lambda: starts(server) > serving, began)


def stopped(model: str, load: list[bytes]) -> dict[str, Any]:
    """SIGTERM while one of two workers is stopped, under load."""
    with start_server([*SERVE, model, "--workers", "2", "--drain-seconds", str(DRAIN)]) as server:
        begin_load(server, load)
        os.kill(workers(server)[0], signal.SIGSTOP)
        began = time.monotonic()
        server.process.terminate()
        code = server.process.wait(120)
        return {"drain_s": DRAIN, "ended_after_s": time.monotonic() - began, "exit_code": code}


def orphaned(model: str, load: list[bytes]) -> dict[str, Any]:
    """kill -9 of the parent of two workers, under load."""
    temporary = Path(tempfile.gettempdir())
    before = {*leftovers(temporary)}
    with start_server([*SERVE, model, "--workers", "2", "--drain-seconds", str(DRAIN)]) as server:
        begin_load(server, load)
        orphans = workers(server)
        began = time.monotonic()
        server.process.kill()
        server.process.wait()
        seconds_until(lambda: not any(memory(each) for each in orphans), began)
        ended = time.monotonic() - began
    left = {*leftovers(temporary)} - before
    return {"drain_s": DRAIN, "workers_ended_after_s": ended, "folders_left": len(left)}


def leftovers(folder: Path) -> Iterator[Path]:
    """Folders of the server, and of its forkserver."""
    for pattern in ("offramp-serve-*", "pymp-*"):
        yield from folder.glob(pattern)


def long_texts(model: str, load: list[bytes]) -> dict[str, Any]:
    """Texts of 1 MB at once, and beside them short ones, without and with a deadline of 100 ms."""
    text = to_body("word " * 200_000)
    short = {"none": load[0], "100 ms": json.dumps({**json.loads(load[0]), "deadline_ms": 100}).encode()}
    with (
        start_server([*SERVE, model, "--threads", "1", "--policy", "never"]) as server,
        ThreadPoolExecutor(LONG + len(short)) as pool,
        health(server) as asked,
    ):
        ask(server, load[0])
        waiting = [pool.submit(ask, server, text) for _ in range(LONG)]
        time.sleep(1)  # until they are queued
        asking = {deadline: pool.submit(ask, server, body) for deadline, body in short.items()}
        small = {deadline: each.result() for deadline, each in asking.items()}
        large = [each.result() for each in waiting]
        return {
            "short_ms": {deadline: (status, 1000 * seconds) for deadline, (status, seconds) in small.items()},
            "long": Counter(status for status, _ in large),
            "last_long_after_s": max(seconds for _, seconds in large),
            "health": asked,
        }


def folders(model: str, load: list[bytes]) -> dict[str, int]:
    """Copies of the model folder, each damaged in one place, that are loaded and asked."""
    from offramp.errors import OfframpError
    from offramp.inference import Classifier

    text, found, original = json.loads(load[0])["texts"], Counter[str](), Path(model)
    warnings.simplefilter("ignore")
    whole = Classifier.from_pretrained(model, threads=1).predict(text)
    files = sorted(file for file in original.rglob("*") if file.is_file())
    damages = [(file, damage) for file in files for damage in damages_of(file)]
    for file, damage in random.Random(0).sample(damages, FOLDERS):
        with tempfile.TemporaryDirectory() as place:
            copy = Path(shutil.copytree(original, Path(place) / "model"))
            target = copy / file.relative_to(original)
            target.unlink()
            damage(target)
            try:
                same = Classifier.from_pretrained(copy, threads=1).predict(text) == whole
                found["predicts the same" if same else "predicts otherwise"] += 1
            except OfframpError:
                found["refused"] += 1
            except Exception as error:
                found[f"raw {type(error).__name__}"] += 1
    return found


def damages_of(file: Path) -> Iterator[Callable[[Path], object]]:
    """Functions that write a damaged version of a file."""
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content * 2, random.Random(1).randbytes(1000)):
        yield partial(Path.write_bytes, data=damaged)
    yield Path.mkdir
    if file.suffix == ".json":
        record = json.loads(content)
        for key in record:
            others = {other: record[other] for other in record if other != key}
            wrong: tuple[Any, ...] = (None, -1, [1, 2, 99], "../other", {"x": []})
            for damaged_record in ({**record, key: value} for value in wrong):
                yield partial(Path.write_text, data=json.dumps(damaged_record))
            yield partial(Path.write_text, data=json.dumps(others))


def begin_load(server: Server, load: list[bytes]) -> None:
    """Three times the capacity, for as long as the server lives; returns when the queue is full."""
    capacity = run_client(closed_loop, server.url, load, 5)["answered per second"]
    arguments = (open_loop, server.url, load, 40, 3 * capacity)
    threading.Thread(target=run_client, args=arguments, daemon=True).start()
    time.sleep(10)


@contextmanager
def health(server: Server) -> Iterator[dict[str, Any]]:
    """Asks /health ten times a second, on a new connection each time."""
    found: dict[str, Any] = {"asked": 0, "failed": 0, "max_ms": 0.0}
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.1):
            began = time.monotonic()
            found["asked"] += 1
            try:
                urlopen(f"{server.url}/health", timeout=10).read()
                found["max_ms"] = max(found["max_ms"], 1000 * (time.monotonic() - began))
            except OSError:
                found["failed"] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def ask(server: Server, body: bytes) -> tuple[int, float]:
    """The status, and the seconds until it came."""
    began = time.monotonic()
    request = Request(f"{server.url}/predict", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=300) as response:
            response.read()
            return response.status, time.monotonic() - began
    except HTTPError as refusal:
        return refusal.code, time.monotonic() - began


def connect(server: Server) -> socket.socket:
    place = urlsplit(server.url)
    return socket.create_connection((place.hostname, place.port), timeout=60)


def first_line(client: socket.socket) -> str:
    try:
        return client.recv(1000).decode().partition("\r\n")[0]
    except ConnectionError as error:
        return type(error).__name__


def close(clients: Any) -> None:
    for client in clients:
        client.close()


def log_size(server: Server) -> int:
    return os.stat(f"/proc/{server.process.pid}/fd/2").st_size


def starts(server: Server) -> int:
    """How many workers have begun to serve so far."""
    return Path(f"/proc/{server.process.pid}/fd/2").read_bytes().count(b"Started server process")


def seconds_until(happened: Callable[[], object], since: float) -> float:
    while not happened():
        time.sleep(0.01)
        if time.monotonic() - since > 120:
            return float("inf")
    return time.monotonic() - since


ATTACKS: dict[str, Callable[[str, list[bytes]], dict[str, Any]]] = {
    "silent": silent,
    "unfinished": unfinished,
    "killed": killed,
    "stopped": stopped,
    "orphaned": orphaned,
    "long_texts": long_texts,
    "folders": folders,
}

if __name__ == "__main__":
    main()
