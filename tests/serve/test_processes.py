"""Which deaths of workers end a server, and processes forked from one that has imported modules.

How a server replaces its workers is tested in test_server.py.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import offramp
from offramp.errors import CannotLoad
from offramp.serve.processes import Supervisor, Worker


def dead(problem: str = "") -> Worker:
    process: Any = SimpleNamespace(pid=1, exitcode=1 if problem else -signal.SIGBUS)
    return Worker(process, pipe=None, problem=problem)  # type: ignore[arg-type]


def supervise(wanted: int = 2) -> Supervisor:
    with socket.socket() as listener:
        return Supervisor(
            print, (), wanted=wanted, listener=listener, drain_seconds=0, on_serving=lambda: None
        )


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
    supervisor = supervise()
    supervisor.served = has_served
    ours, theirs = Pipe()
    with ours, theirs:
        supervisor.workers = [Worker(None, ours, heard=float(other_serves))]  # type: ignore[arg-type]
        if ends:
            with pytest.raises(CannotLoad, match=problem or "SIGBUS"):
                supervisor.report_death(dead(problem))
        else:
            supervisor.report_death(dead(problem))
            assert supervisor.next_start > time.monotonic()
            assert theirs.recv() is True, "the others learn it"


def test_replacements_that_die_at_once_are_tried_ever_more_rarely_and_the_log_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("offramp.serve.processes.time.monotonic", lambda: 1000.0)
    monkeypatch.setattr("offramp.serve.processes.shutil.disk_usage", lambda _: SimpleNamespace(free=3 << 19))
    supervisor = supervise()
    supervisor.served = True
    delays = []
    for _ in range(8):
        supervisor.report_death(dead())
        delays.append(supervisor.next_start - 1000)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    message = caplog.messages[-1]
    assert "trying again in 60 s: a worker died while it loaded the model, with SIGBUS." in message
    assert f"The temporary folder {tempfile.gettempdir()} has 1.5 MiB free" in message


@pytest.mark.parametrize(
    ("is_replacement", "seconds", "failures"), [(False, 0.1, 0), (True, 0.1, 1), (True, 100, 0)]
)
def test_a_replacement_that_serves_only_for_a_moment_has_failed_too(
    is_replacement: bool, seconds: float, failures: int
) -> None:
    supervisor = supervise()
    supervisor.served = True
    worker = dead()
    worker.is_replacement, worker.since, worker.heard = is_replacement, 1.0, 1.0 + seconds
    supervisor.report_death(worker)
    assert supervisor.failures == failures


def test_only_a_worker_started_after_another_has_served_is_a_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def record(work: Any, arguments: tuple[Any, ...], preload: Any) -> Any:
        started.append(arguments[1])
        return SimpleNamespace(pid=1)

    monkeypatch.setattr("offramp.serve.processes.new_process", record)
    supervisor = supervise()
    supervisor.start_missing()
    supervisor.served = True
    supervisor.workers.pop().pipe.close()
    supervisor.start_missing()
    for worker in supervisor.workers:
        worker.pipe.close()
    assert started == [False, False, True]


START = """
import sys
from offramp.errors import OfframpError
from offramp.serve.processes import new_process

def work():
    print("{module}" in sys.modules, flush=True)

if __name__ == "__main__":
    try:
        process = new_process(work, (), ["{module}"])
    except (EOFError, ConnectionError):
        print("died")
    except OfframpError as error:
        print(error)
    else:
        process.join()
"""


def start(folder: Path, module: str, **environment: str) -> str:
    file = folder / "start.py"
    file.write_text(START.format(module=module))
    package = Path(offramp.__file__).parents[1]
    paths = {"PYTHONPATH": f"{folder / 'modules'}:{package}", "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**paths, **environment},
        timeout=120,
    )
    return done.stdout.strip()


def module(folder: Path, name: str, code: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code)


def test_a_new_process_finds_the_module_imported(tmp_path: Path) -> None:
    module(tmp_path / "modules", "useful", "")
    assert start(tmp_path, "useful") == "True"


def test_a_module_that_cannot_be_loaded_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    module(tmp_path / "modules", "broken", "raise OSError('a library is missing')")
    assert start(tmp_path, "broken") == "died"


def test_modules_are_not_taken_from_the_current_folder(tmp_path: Path) -> None:
    module(tmp_path / "modules", "useful", "import os; os.write(1, b'right ')")
    module(tmp_path / "elsewhere", "useful", "import os; os.write(1, b'wrong ')")
    (tmp_path / "elsewhere" / "modules").symlink_to(tmp_path / "modules")
    assert start(tmp_path / "elsewhere", "useful").startswith("right")


def test_a_temporary_folder_with_a_very_long_name_works_or_is_explained(tmp_path: Path) -> None:
    """Later versions of Python choose a shorter path themselves."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    module(tmp_path / "modules", "useful", "")
    found = start(tmp_path, "useful", TMPDIR=str(long))
    assert found == "True" or "is too long for a socket; set a shorter one" in found
