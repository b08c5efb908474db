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


def test_an_empty_file_of_a_worker_that_died_for_lack_of_space_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    empty, full, alive = (
        tmp_path / f"counter_{ended.pid}.db",
        tmp_path / f"histogram_{ended.pid}.db",
        tmp_path / f"counter_{os.getpid()}.db",
    )
    empty.touch()
    full.write_bytes(b"counts")
    alive.touch()
    remove_dead_workers(tmp_path, lambda _: None)
    assert {*tmp_path.iterdir()} == {full, alive}
