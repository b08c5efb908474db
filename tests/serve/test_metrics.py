"""Metrics of workers that have died."""

import os
import subprocess
import sys
from pathlib import Path

from offramp.serve.metrics import remove_dead_workers


def test_only_dead_workers_are_removed_and_concurrent_removals_do_not_collide(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for worker in (ended.pid, os.getpid(), 1):
        (tmp_path / f"gauge_livesum_{worker}.db").touch()
    removed = []

    def remove(worker: int) -> None:
        removed.append(worker)
        raise FileNotFoundError("another scrape was first")

    remove_dead_workers(tmp_path, remove)
    assert removed == [ended.pid]
