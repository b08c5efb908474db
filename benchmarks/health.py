"""Measures /health and the outcome of every request at three times the capacity of a server.

    python benchmarks/health.py --model FOLDER --texts FILE [--seconds 30]

`offramp serve` runs at full depth on one thread, so that a second core is left for the clients. Requests of one text
each arrive at three times its capacity, sent by a process of their own, while /health is asked 20 times a second on a
new connection each time. Prints JSON; a reset connection counts as lost.
"""

import argparse
import json
import sys
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from shared import about, read_texts

from serve import (
    allow_many_connections,
    closed_loop,
    open_loop,
    percentiles,
    run_client,
    start_server,
    to_body,
)

TIMES = 3
EVERY = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    allow_many_connections()
    load = [to_body(text) for text in read_texts(options.texts)]
    command = [sys.executable, "-m", "offramp", "serve", options.model, "--port", "PORT", "--threads", "1"]
    with start_server([*command, "--policy", "never", "--audit-share", "0"]) as server, ThreadPool(1) as pool:
        run_client(closed_loop, server.url, load, 5)
        capacity = run_client(closed_loop, server.url, load, 10)["answered per second"]
        rate = TIMES * capacity
        client = pool.apply_async(run_client, (open_loop, server.url, load, options.seconds, rate))
        health = ask_until(server.url, client)
        found = client.get()
    facts = about(capacity=capacity, seconds=options.seconds)
    print(json.dumps({**facts, "health_ms": health, "requests": found}, indent=1))


def ask_until(url: str, client: Any) -> dict[str, Any]:
    """Milliseconds of /health, until the client is done; and how late this process itself was to wake up."""
    times, late = [], []
    while not client.ready():
        begin = time.perf_counter()
        with urlopen(f"{url}/health", timeout=10) as response:
            response.read()
        end = time.perf_counter()
        times.append(1000 * (end - begin))
        time.sleep(EVERY)
        late.append(1000 * (time.perf_counter() - end - EVERY))
    own = {"max": max(late), **(percentiles(late) or {})}
    return {"asked": len(times), "max": max(times), **(percentiles(times) or {}), "own_lateness": own}


if __name__ == "__main__":
    main()
