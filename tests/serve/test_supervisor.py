"""Which deaths of workers end a server. How real processes are replaced is tested in test_server.py."""

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from offramp.errors import CannotLoad
from offramp.serve.supervisor import Supervisor, Worker


def dead(problem: str = "") -> Worker:
    process: Any = SimpleNamespace(pid=1, exitcode=1 if problem else -9)
    return Worker(process, pipe=None, problem=problem)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has_served", "other_serves", "problem", "ends"),
    [
        (False, False, "damaged", True),
        (False, False, "", True),
        (True, False, "damaged", True),
        (True, False, "", False),  # killed while it was to replace another
        (True, True, "damaged", False),
        (True, True, "", False),
    ],
)
def test_a_worker_that_cannot_start_ends_the_server_unless_another_serves_or_it_was_killed(
    has_served: bool, other_serves: bool, problem: str, ends: bool
) -> None:
    supervisor = Supervisor(
        print, (), workers=2, listener=socket.socket(), drain_seconds=0, on_serving=lambda: None
    )
    supervisor.served = has_served
    supervisor.workers = [Worker(None, None, heard=float(other_serves))]  # type: ignore[arg-type]
    if ends:
        with pytest.raises(CannotLoad, match=problem or "exit code -9"):
            supervisor.report_death(dead(problem))
    else:
        supervisor.report_death(dead(problem))
        assert (supervisor.next_start > time.monotonic()) is bool(problem)
    supervisor.listener.close()


def test_only_a_worker_started_after_another_has_served_is_a_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def record(work: Any, arguments: tuple[Any, ...], preload: Any) -> Any:
        started.append(arguments[1])
        return SimpleNamespace(pid=1)

    monkeypatch.setattr("offramp.serve.supervisor.new_process", record)
    supervisor = Supervisor(
        print, (), workers=2, listener=socket.socket(), drain_seconds=0, on_serving=lambda: None
    )
    supervisor.start_missing()
    supervisor.served = True
    supervisor.workers.pop().pipe.close()
    supervisor.start_missing()
    for worker in supervisor.workers:
        worker.pipe.close()
    supervisor.listener.close()
    assert started == [False, False, True]
