"""Measures servers under load, with requests that arrive at a constant rate and do not wait for each other.

    python benchmarks/serve.py --model FOLDER --texts FILE [--quick] > serve.json

FOLDER holds a trained ExitModel with its tokenizer; FILE has one text per line, or is a .tsv with a column
`sentence` or `text`. Policies are calibrated on the first half of the texts; the second half is the load.
Four servers are measured: transformers' pipeline served by FastAPI, which batches up to 32 waiting requests, and
`offramp serve` at full depth, with a policy, and with a ladder of three. Requests of one text each arrive at 0.5, 1
and 3 times the capacity of the pipeline, sent by a separate process. Latency counts from the time a request was due.
A table goes to stderr and JSON to stdout. soak.py measures long runs.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from shared import about, last_exit_only, log, read_texts

TIMES = (0.5, 1.0, 3.0)
BATCH = 32
EPSILONS = (0.02, 0.05, 0.10)
CLIENTS = 64
"""Clients that measure capacity, each with one request at a time."""
KEEP_ALIVE = 2.0
"""Seconds for which an idle connection is kept."""
GRACE = 60.0
"""Seconds after the last arrival in which responses still count."""


def main() -> None:
    args = arguments()
    if args.pipeline_port:
        return serve_pipeline(args.model, args.pipeline_port, args.threads)
    allow_many_connections()
    texts = read_texts(args.texts)
    half = len(texts) // 2
    with tempfile.TemporaryDirectory() as folder:
        policies = calibrate_ladder(args, texts[:half], Path(folder))
        load = [to_body(text) for text in texts[half:]]
        report: dict[str, Any] = {"machine": machine(args), "policies": policies["described"]}
        report["servers"] = compare(args, policies, load)
        show(report["servers"])
    print(json.dumps(report, indent=2))
    return None


def to_body(text: str) -> bytes:
    return json.dumps({"texts": text}).encode()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", required=True, help="folder of a trained ExitModel with its tokenizer")
    parser.add_argument("--texts", type=Path, help="one text per line, or a .tsv")
    parser.add_argument("--seconds", type=float, help="duration of each run")
    parser.add_argument(
        "--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="CPU threads of each server"
    )
    parser.add_argument(
        "--max-waiting", type=int, default=512, help="queue size of `offramp serve`, in texts"
    )
    parser.add_argument("--quick", action="store_true", help="a minute or two, to check that it runs")
    parser.add_argument("--pipeline-port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.seconds = args.seconds or (3 if args.quick else 20)
    return args


def allow_many_connections() -> None:
    """Child processes inherit the limit: a server that never refuses holds one connection per waiting request."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def calibrate_ladder(args: argparse.Namespace, texts: list[str], folder: Path) -> dict[str, Any]:
    """The policy and up to two looser rungs, each certified on these texts."""
    from datasets import Dataset

    from offramp.errors import NoSafeThreshold
    from offramp.inference import Classifier
    from offramp.inference.collect import collect
    from offramp.measuring import Guarantee, calibrate

    classifier = Classifier.from_pretrained(args.model, "never", threads=args.threads)
    trace = collect(classifier, Dataset.from_dict({"text": texts}), data="first half", progress=False)
    found = []
    for epsilon in EPSILONS:
        with suppress(NoSafeThreshold):  # too few texts for this bound
            found.append(calibrate(trace, "entropy", Guarantee(epsilon)).policy)
    if not found:
        raise SystemExit(f"{len(texts)} texts are too few for a guarantee; give more")
    files = []
    for number, policy in enumerate(found):
        files.append(folder / f"rung-{number}.json")
        files[-1].write_text(json.dumps(policy.to_json()))
    layers = np.array(trace.layers)
    described = [
        {
            "policy": str(policy),
            "promise": policy.to_json()["certificate"]["promise"],
            "mean layer": float(layers[policy.exits(trace.logits, layers=trace.layers)].mean()),
        }
        for policy in found
    ]
    return {"described": described, "normal": str(found[0]), "rungs": files[1:]}


def compare(args: argparse.Namespace, policies: dict[str, Any], load: list[bytes]) -> dict[str, Any]:
    """Measure every server at the same rates."""
    found: dict[str, Any] = {}
    unit = None
    for name, command in servers(args, policies).items():
        log(f"{name} ...")
        with start_server(command) as server:
            run_client(closed_loop, server.url, load, args.seconds / 4)  # warm up
            capacity = run_client(closed_loop, server.url, load, args.seconds / 2)["answered per second"]
            unit = unit or capacity
            rates = {
                f"{times:g}": run_client(open_loop, server.url, load, args.seconds, times * unit)
                for times in TIMES
            }
        found[name] = {
            "capacity": capacity,
            "capacity / pipeline": capacity / unit,
            "at times the pipeline's capacity": rates,
        }
    return found


def servers(args: argparse.Namespace, policies: dict[str, Any]) -> dict[str, list[str]]:
    ours = [sys.executable, "-c", "from offramp.cli import main; main()", "serve", args.model]
    ours += ["--threads", str(args.threads), "--max-waiting", str(args.max_waiting), "--port", "PORT"]
    rungs = [part for file in policies["rungs"] for part in ("--ladder", str(file))]
    pipeline = [sys.executable, __file__, "--model", args.model, "--threads", str(args.threads)]
    return {
        "pipeline": [*pipeline, "--pipeline-port", "PORT"],
        "full depth": [*ours, "--policy", "never", "--audit-share", "0"],
        "policy": [*ours, "--policy", policies["normal"]],
        "ladder": [*ours, "--policy", policies["normal"], *rungs],
    }


@dataclass
class Server:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def start_server(command: list[str]) -> Iterator[Server]:
    port = free_port()
    command = [str(port) if part == "PORT" else part for part in command]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stderr=output, stdout=output)
        server = Server(f"http://127.0.0.1:{port}", process)
        try:
            wait_until_ready(server, output)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(server: Server, output: Any) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    for _ in range(600):
        if server.process.poll() is not None:
            output.seek(0)
            raise SystemExit(f"a server did not start:\n{output.read().decode()}")
        with suppress(URLError, ConnectionError), urlopen(f"{server.url}/health") as response:
            if response.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit("a server took more than two minutes to start")


def run_client(client: Callable[..., Any], *arguments: Any) -> Any:
    """Run a client in its own process, so that it does not slow down this one's threads."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(client, arguments)


def closed_loop(url: str, load: list[bytes], seconds: float, keep: bool = True) -> dict[str, Any]:
    """Capacity: each client sends its next request as soon as it has a response."""
    client = Client(url, load, keep)

    async def run() -> None:
        end = time.perf_counter() + seconds

        async def one(number: int) -> None:
            while time.perf_counter() < end:
                await client.send(number, time.perf_counter())
                number += CLIENTS

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))

    start = time.perf_counter()
    asyncio.run(run())
    return client.summary(time.perf_counter() - start)


def open_loop(url: str, load: list[bytes], seconds: float, rate: float, keep: bool = True) -> dict[str, Any]:
    """Requests at a constant rate, whether or not earlier ones are done."""
    client = Client(url, load, keep)

    async def run() -> None:
        start, tasks = time.perf_counter() + 0.1, []
        for number in range(int(rate * seconds)):
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(client.send(number, due)))
        _, pending = await asyncio.wait(tasks, timeout=GRACE)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    return client.summary(seconds)


class Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since: float
    """When it became idle."""


class Client:
    """Minimal HTTP/1.1, because client and server share the machine; without `keep`, each request has a connection
    of its own."""

    def __init__(self, url: str, load: list[bytes], keep: bool = True) -> None:
        place = urlsplit(url)
        self.host, self.port, self.load, self.keep = place.hostname, place.port, load, keep
        self.idle: list[Connection] = []
        self.surplus = 0
        """Responses without a request, found in a connection's buffer."""
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.layers: list[int] = []
        self.rungs: Counter[str] = Counter()
        self.late: list[float] = []
        self.waits: dict[str, list[float]] = {"answered": [], "refused": []}
        self.seen: Counter[str] = Counter()

    async def send(self, number: int, due: float) -> str:
        """The outcome; every request is counted as answered, refused, failed, lost or mixed up."""
        self.sent += 1
        self.late.append(1000 * (time.perf_counter() - due))
        outcome = "lost"
        try:
            status, name, body = await self.exchange(number)
            self.seen[name] += 1
            known = {200: "answered", 429: "refused"}.get(status, "failed")
            outcome = known if name == str(number) else "mixed up"
            if outcome == "answered":
                response = json.loads(body)
                (prediction,) = response["predictions"]
                self.layers.append(prediction["layer"])
                self.rungs[str(response["rung"])] += 1
            if outcome in self.waits:
                self.waits[outcome].append(1000 * (time.perf_counter() - due))
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            self.outcomes[outcome] += 1
        return outcome

    async def exchange(self, number: int) -> tuple[int, str, bytes]:
        reader, writer = await self.connection()
        body = self.load[number % len(self.load)]
        head = f"POST /predict HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}X-Request-ID: {number}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            found = await reader.readexactly(int(headers["content-length"]))
        except BaseException:
            writer.close()
            raise
        if headers.get("connection") == "close" or not self.keep:
            writer.close()
        else:
            self.idle.append(Connection(reader, writer, time.perf_counter()))
        return int(first.split()[1]), headers["x-request-id"], found

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An idle connection, or a new one; servers close connections that were idle for long."""
        while self.idle:
            reader, writer, since = self.idle.pop()
            self.surplus += bool(reader._buffer)  # type: ignore[attr-defined]
            if time.perf_counter() - since < KEEP_ALIVE and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self.host, self.port)

    def summary(self, seconds: float) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "sent per second": self.sent / seconds,
            **{name: self.outcomes[name] for name in ("answered", "refused", "failed", "lost", "mixed up")},
            "double": sum(count - 1 for count in self.seen.values()) + self.surplus,
            "answered per second": self.outcomes["answered"] / seconds,
            "mean layer": float(np.mean(self.layers)) if self.layers else None,
            "rungs": dict(sorted(self.rungs.items())),
            "ms": percentiles(self.waits["answered"]),
            "ms to refuse": percentiles(self.waits["refused"]),
            "ms late to send": percentiles(self.late),
        }


def percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {**{f"p{part}": float(np.percentile(values, part)) for part in (50, 95, 99)}, "max": max(values)}


def memory(process: int) -> float:
    """Resident memory in MiB; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0) / 1024


def serve_pipeline(model: str, port: int, threads: int) -> None:
    """The baseline: the same weights at full depth in transformers' pipeline, served by FastAPI."""
    import torch
    import transformers
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from pydantic import BaseModel

    from offramp.models.exit_model import ExitModel

    torch.set_num_threads(threads)
    pipe = transformers.pipeline(
        "text-classification",
        model=last_exit_only(ExitModel.from_pretrained(model)),
        tokenizer=transformers.AutoTokenizer.from_pretrained(model),
    )
    depth = pipe.model.config.exits[-1]
    waiting: queue.Queue[tuple[str, Future[Any]]] = queue.Queue()

    def run_batches() -> None:
        while True:
            taken = [waiting.get()]
            while len(taken) < BATCH and not waiting.empty():
                taken.append(waiting.get())
            predictions = pipe([text for text, _ in taken], batch_size=BATCH, truncation=True)
            for (_, future), prediction in zip(taken, predictions, strict=True):
                future.set_result(prediction)

    class Body(BaseModel):
        texts: str

    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/predict")
    async def predict(body: Body, request: Request, response: Response) -> dict[str, Any]:
        future: Future[Any] = Future()
        waiting.put((body.texts, future))
        prediction = await asyncio.wrap_future(future)
        response.headers["X-Request-ID"] = request.headers.get("x-request-id", "")
        return {"predictions": [{**prediction, "layer": depth}], "rung": None}

    threading.Thread(target=run_batches, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


def machine(args: argparse.Namespace) -> dict[str, Any]:
    return {
        **about(cores=os.cpu_count()),
        "threads per server": args.threads,
        "seconds per run": args.seconds,
        "max waiting": args.max_waiting,
    }


def show(found: dict[str, Any]) -> None:
    columns = ["server", "capacity", "x", "sent/s", "answered", "refused", "lost", "double", "layer"]
    log("  ".join(f"{name:>10}" for name in [*columns, "p50 ms", "p95 ms", "p99 ms", "max ms"]))
    for name, server in found.items():
        for times, run in server["at times the pipeline's capacity"].items():
            lost = run["lost"] + run["failed"] + run["mixed up"]
            cells = [name, f"{server['capacity']:.0f}", times, f"{run['sent per second']:.0f}"]
            cells += [str(run[key]) for key in ("answered", "refused")]
            cells += [str(lost), str(run["double"]), f"{run['mean layer'] or 0:.2f}"]
            cells += [f"{value:.0f}" for value in (run["ms"] or {}).values()]
            log("  ".join(f"{cell:>10}" for cell in cells))


if __name__ == "__main__":
    main()
