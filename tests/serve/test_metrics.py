"""Figures of workers that are gone."""

import os
import subprocess
import sys
from pathlib import Path

from offramp.serve.metrics import forget_the_dead


def test_the_dead_are_forgotten_the_living_are_not_and_two_who_forget_at_once_do_not_collide(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for worker in (ended.pid, os.getpid(), 1):
        (tmp_path / f"gauge_livesum_{worker}.db").touch()
    forgotten = []

    def forget(worker: int) -> None:
        forgotten.append(worker)
        raise FileNotFoundError("somebody else was first")

    forget_the_dead(tmp_path, forget)
    assert forgotten == [ended.pid]
