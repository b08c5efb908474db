"""Measures probes and the outcome of every request at three times the capacity of a server.

    python benchmarks/health.py --model FOLDER --texts FILE [--ladder FILE ...] [--seconds 30]

`offramp serve` runs on one thread, so that a second core is left for the clients: first at full depth, with
connections that are kept, where the model is the limit; then as in production, with the exits of the model's own
policy, the ladder and a new connection for each request, where accepting and parsing are. Requests of one text each
arrive at three times the capacity, sent by a process of their own, while probes are asked on new connections: /health
on the port of the requests, /health and /metrics on that of --probe-port. Prints JSON; a reset connection counts as
lost, and "ms late to send" is the part of the waiting times that is the client's own.
"""

import argparse
import json
import sys
import time
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from shared import about, read_texts

from serve import (
    allow_many_connections,
    closed_loop,
    free_port,
    open_loop,
    percentiles,
    run_client,
    start_server,
    to_body,
)

TIMES = 3
EVERY = {"/health": 0.05, "/metrics": 1.0}
"""Seconds between two probes."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--ladder", action="append", default=[], help="as for `offramp serve`")
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    allow_many_connections()
    load = [to_body(text) for text in read_texts(options.texts)]
    command = [sys.executable, "-m", "offramp", "serve", options.model, "--threads", "1", "--port", "PORT"]
    ladder = [part for file in options.ladder for part in ("--ladder", file)]
    full_depth = [*command, "--policy", "never", "--audit-share", "0"]
    report = about(seconds=options.seconds)
    report["full depth, kept connections"] = measure(full_depth, load, options.seconds, keep=True)
    with TemporaryDirectory() as folder:  # results of an earlier run must not forbid rungs
        exits = [*command, *ladder, "--audit-folder", folder]
        report["exits, new connections"] = measure(exits, load, options.seconds, keep=False)
    print(json.dumps(report, indent=1))


def measure(command: list[str], load: list[bytes], seconds: float, *, keep: bool) -> dict[str, Any]:
    port = free_port()
    with start_server([*command, "--probe-port", str(port)]) as server, ThreadPool(4) as pool:
        run_client(closed_loop, server.url, load, seconds / 6, keep)
        capacity = run_client(closed_loop, server.url, load, seconds / 3, keep)["answered per second"]
        rate = TIMES * capacity
        client = pool.apply_async(run_client, (open_loop, server.url, load, seconds, rate, keep))
        places = {"/health": server.url, "/health of the probe port": f"http://127.0.0.1:{port}"}
        places["/metrics of the probe port"] = places["/health of the probe port"]
        probes = {
            name: pool.apply_async(ask_until, (place, name.split()[0], client))
            for name, place in places.items()
        }
        found = {name: probe.get() for name, probe in probes.items()}
        return {"capacity": capacity, "probes_ms": found, "requests": client.get()}


def ask_until(url: str, path: str, client: AsyncResult[Any]) -> dict[str, Any]:
    """Milliseconds of a probe, until the client is done; and how late this process itself was to wake up."""
    times, late = [], []
    while not client.ready():
        begin = time.perf_counter()
        with urlopen(url + path, timeout=60) as response:
            response.read()
        end = time.perf_counter()
        times.append(1000 * (end - begin))
        time.sleep(EVERY[path])
        late.append(1000 * (time.perf_counter() - end - EVERY[path]))
    return {"asked": len(times), **(percentiles(times) or {}), "own_lateness": percentiles(late)}


if __name__ == "__main__":
    main()
