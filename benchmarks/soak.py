"""Serves for long under load while workers are killed, and counts every request.

    python benchmarks/soak.py --model FOLDER --texts FILE [--minutes 30] > soak.json

FOLDER and FILE are as for serve.py. `offramp serve` runs with a ladder and two workers. Requests of one text each
arrive at 0.8 of its capacity, at a constant rate. Once a minute the younger worker is killed, so that the older one
shows how its memory grows. A request counts as lost with a worker if a kill fell between its sending and its end, and
otherwise as lost; responses with a wrong id are mixed up, and further ones to the same request are doubled. Progress
and a Markdown table with a row for each minute go to stderr, JSON to stdout. The exit code is 1 if a request failed,
or was lost, mixed up or doubled, other than with a killed worker.
"""

import argparse
import asyncio
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from shared import about, log, markdown, read_texts

from serve import (
    GRACE,
    Client,
    Server,
    allow_many_connections,
    calibrate_ladder,
    closed_loop,
    memory,
    run_client,
    servers,
    start_server,
    to_body,
)

LOAD = 0.8
WARM_UP = 10.0
"""Seconds to warm up, and as many to measure the capacity."""
KILL_EVERY = 60.0
FIRST_KILL = 30.0
"""Seconds after the start: in the middle of each minute."""
MARGIN = 1.0
"""Seconds around a kill in which connections may break."""


COUNTED = ("sent", "answered", "refused", "failed", "lost with a worker", "lost", "mixed up")
FAULTS = ("failed", "lost", "mixed up")


def main() -> int:
    args = arguments()
    allow_many_connections()
    texts = read_texts(args.texts)
    half = len(texts) // 2
    with tempfile.TemporaryDirectory() as folder:
        policies = calibrate_ladder(args, texts[:half], Path(folder))
        load = [to_body(text) for text in texts[half:]]
        command = [*servers(args, policies)["ladder"], "--workers", "2"]
        with start_server(command) as server:
            run_client(closed_loop, server.url, load, WARM_UP)
            capacity = run_client(closed_loop, server.url, load, WARM_UP)["answered per second"]
            log(f"{capacity:.0f} texts/s with two workers; {args.minutes:g} minutes at {LOAD} of that")
            watcher = Watcher(server, args.minutes * 60)
            watcher.start()
            exchanges, doubled = run_client(open_loop, server.url, load, args.minutes * 60, LOAD * capacity)
            watcher.join()
    report = {
        **about(cores=os.cpu_count()),
        "threads per worker": args.threads,
        "capacity": capacity,
        "load": LOAD,
        "policies": policies["described"],
        "doubled": doubled,
        "kills": len(watcher.kills),
        "minutes": minutes(exchanges, watcher),
    }
    log(table(report["minutes"]))
    print(json.dumps(report, indent=2))
    return int(bool(doubled or any(row[name] for row in report["minutes"] for name in FAULTS)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", required=True, help="folder of a trained ExitModel with its tokenizer")
    parser.add_argument("--texts", type=Path, required=True, help="one text per line, or a .tsv")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each worker")
    parser.add_argument("--max-waiting", type=int, default=512, help="queue size of each worker, in texts")
    return parser.parse_args()


class Exchange(NamedTuple):
    """One request, in seconds of the system's monotonic clock."""

    sent: float
    ended: float
    outcome: str


def open_loop(url: str, load: list[bytes], seconds: float, rate: float) -> tuple[list[Exchange], int]:
    """Requests at a constant rate; also the number of responses that nobody asked for. Logs every minute."""
    client, found = Client(url, load), list[Exchange]()

    async def send(number: int, due: float) -> None:
        sent = time.monotonic()
        outcome = await client.send(number, due)
        found.append(Exchange(sent, time.monotonic(), outcome))

    async def run() -> None:
        start, tasks = time.perf_counter(), set[asyncio.Task[None]]()
        for number in range(int(rate * seconds)):
            due = start + number / rate
            if number % math.ceil(60 * rate) == 0:
                counts = ", ".join(f"{count} {name}" for name, count in client.outcomes.items())
                log(f"minute {number / rate / 60:.0f} of {seconds / 60:g}: {number} sent; {counts}")
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(send(number, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=GRACE)
            for task in pending:
                task.cancel()

    asyncio.run(run())
    return found, client.summary(seconds)["double"]


@dataclass(eq=False)
class Watcher(threading.Thread):
    """Kills the younger worker every minute, and records when and how much memory the processes have."""

    server: Server
    seconds: float
    kills: list[float] = field(default_factory=list)
    replaced: list[float] = field(default_factory=list)
    """Seconds from each kill until the next worker had started."""
    memories: list[tuple[float, float, float]] = field(default_factory=list)
    """The time, and MiB of the older worker and of all processes."""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.begun = time.monotonic()
        self.survivor = workers(self.server)[0]

    def run(self) -> None:
        next_kill = self.begun + FIRST_KILL
        while (now := time.monotonic()) < self.begun + self.seconds:
            alive = workers(self.server)
            if now >= next_kill and len(alive) == 2:
                self.kill(next(worker for worker in alive if worker != self.survivor))
                next_kill += KILL_EVERY
            parents = [self.server.process.pid, *forkservers(self.server)]
            sizes = {process: memory(process) for process in [*parents, *alive]}
            self.memories.append((now, sizes[self.survivor], sum(sizes.values())))
            time.sleep(1)

    def kill(self, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        self.kills.append(time.monotonic())
        while {*workers(self.server)} <= {worker, self.survivor}:
            time.sleep(0.02)
        self.replaced.append(time.monotonic() - self.kills[-1])


def workers(server: Server) -> list[int]:
    """The living worker processes, oldest first."""
    return sorted(worker for parent in forkservers(server) for worker in children(parent))


def forkservers(server: Server) -> list[int]:
    """The process that workers are forked from, if it lives."""
    processes = children(server.process.pid)
    return [each for each in processes if b"forkserver" in Path(f"/proc/{each}/cmdline").read_bytes()]


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def minutes(exchanges: list[Exchange], watcher: Watcher) -> list[dict[str, Any]]:
    """A row for each minute: counts of requests, and the memory of the older worker and of all processes."""
    rows: dict[int, Counter[str]] = {}

    def minute_of(time: float) -> int:
        """From 1; the last requests are sent a little later than the watcher ends."""
        return min(int((time - watcher.begun) / 60) + 1, math.ceil(watcher.seconds / 60))

    for each in exchanges:
        row = rows.setdefault(minute_of(each.sent), Counter())
        row["sent"] += 1
        with_worker = any(each.sent - MARGIN < kill < each.ended + MARGIN for kill in watcher.kills)
        row["lost with a worker" if each.outcome == "lost" and with_worker else each.outcome] += 1
    found = []
    for minute, row in sorted(rows.items()):
        sizes = np.mean([each for each in watcher.memories if minute_of(each[0]) == minute], axis=0)
        found.append(
            {
                "minute": minute,
                **{name: row[name] for name in COUNTED},
                "replaced after, s": next(iter(watcher.replaced[minute - 1 : minute]), None),
                "older worker, MiB": float(sizes[1]),
                "all, MiB": float(sizes[2]),
            }
        )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    total = {"minute": "all"} | {name: sum(row[name] for row in rows) for name in COUNTED}
    return markdown([*rows[0]], [[cell(name, row.get(name)) for name in rows[0]] for row in [*rows, total]])


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if name.endswith(" s") else f"{value:.0f}" if name.endswith("MiB") else str(value)


if __name__ == "__main__":
    sys.exit(main())
