"""Processes: a supervisor that keeps workers running. It never waits for a single worker, so none delays the others.

On Linux workers are forked from a forkserver that has imported what they need, so that a new one has little to do but
load the model. What torch loads on macOS does not survive a fork, so there every worker imports for itself.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from offramp.errors import BadOption, CannotLoad
from offramp.serve.network import stop_listening
from offramp.wording import count

HEARTBEAT = 1.0
"""Seconds between two messages of a worker that serves."""
SILENCE = 60.0
"""Seconds without a message after which a worker that served is killed."""
RETRY = 1.0
"""Seconds until another attempt after a replacement has failed; twice as many after each further one in a row."""
LONGEST_RETRY = 60.0
SETTLED = 5.0
"""Seconds for which a replacement must serve; one that dies earlier has failed, like one that cannot start."""
LITTLE_SPACE = 16 << 20
"""Bytes. With less in the temporary folder, the files in which a worker keeps its metrics may not fit."""
OVERTIME = 4.0
"""Seconds beyond the time to drain after which workers are killed."""
CAN_FORK = sys.platform == "linux"

log = logging.getLogger("offramp.serve")


@dataclass
class Supervisor:
    """Runs `work(pipe, is_replacement, *arguments)` in several processes. Through the pipe a process learns whether
    replacements fail (True) or not any more (False); it is closed when the process is no longer wanted.
    `is_replacement` is whether a worker has served before it started."""

    work: Callable[..., None]
    arguments: tuple[Any, ...]
    wanted: int
    """How many workers."""
    listener: socket.socket
    """Where they accept connections."""
    drain_seconds: float
    """How long they may take to end."""
    on_serving: Callable[[], None]
    """Called when the first of them serves."""
    preload: Sequence[str] = ()
    """Modules that the processes need."""
    workers: list["Worker"] = field(default_factory=list)
    served: bool = False
    """Whether any of them has served."""
    next_start: float = 0.0
    """When the next worker may start, by `time.monotonic`."""
    failures: int = 0
    """Replacements that have failed since all workers served."""

    def run(self) -> None:
        """Returns after SIGTERM or SIGINT, when all workers have ended; `CannotLoad` if none of them can start."""
        with signals() as stop:
            try:
                while not stop.poll():
                    self.start_missing()
                    pipes = [worker.pipe for worker in self.workers]
                    wait([stop, *pipes, *(worker.process.sentinel for worker in self.workers)], HEARTBEAT)
                    self.check()
            finally:
                self.stop()

    def start_missing(self) -> None:
        while len(self.workers) < self.wanted and time.monotonic() >= self.next_start:
            ours, theirs = Pipe()
            try:
                process = new_process(self.work, (theirs, self.served, *self.arguments), self.preload)
            except (EOFError, ConnectionError):
                problem = "the process that workers are forked from has died"
                if not self.served:
                    raise CannotLoad(f"{problem} while it imported {', '.join(self.preload)}.") from None
                log.error("%s; starting another", problem)
                self.next_start = time.monotonic() + HEARTBEAT
            else:
                self.workers.append(Worker(process, ours, self.served))
                if self.failures:
                    self.workers[-1].send(True)
            finally:
                theirs.close()

    def check(self) -> None:
        for worker in self.workers:
            worker.listen()
            silent = worker.heard and time.monotonic() - worker.heard > SILENCE
            if silent and worker.process.is_alive():
                log.error("worker %d has been silent for %.0f s and is killed", worker.process.pid, SILENCE)
                worker.process.kill()
        if not self.served and any(worker.heard for worker in self.workers):
            self.served = True
            self.on_serving()
        for worker in [worker for worker in self.workers if not worker.process.is_alive()]:
            self.workers.remove(worker)
            worker.pipe.close()
            self.report_death(worker)
        if (
            self.failures
            and len(self.workers) == self.wanted
            and all(worker.settled for worker in self.workers)
        ):
            self.failures = 0
            self.tell_workers()
            log.info("all %d workers serve again", self.wanted)

    def report_death(self, worker: "Worker") -> None:
        pid, cause = worker.process.pid, death(worker.process.exitcode)
        if worker.heard and worker.settled:
            log.error("worker %d died with %s and is replaced", pid, cause)
            return
        when = "soon after its start" if worker.heard else "while it loaded the model"
        problem = (worker.problem or f"a worker died {when}, with {cause}.") + space_problem()
        was_killed = self.served and not worker.problem  # since the model could be loaded before
        if not was_killed and not any(other.heard for other in self.workers):
            raise CannotLoad(problem)
        delay = min(RETRY * 2**self.failures, LONGEST_RETRY)
        self.failures += 1
        log.error("worker %d could not start; trying again in %.0f s: %s", pid, delay, problem)
        self.next_start = time.monotonic() + delay
        self.tell_workers()

    def tell_workers(self) -> None:
        for worker in self.workers:
            worker.send(self.failures > 0)

    def stop(self) -> None:
        """Ends all workers, and kills those that take too long. New connections are refused from now on."""
        end = time.monotonic() + self.drain_seconds + OVERTIME
        stop_listening(self.listener)
        self.listener.close()
        alive = [
            worker for worker in self.workers if worker.process.is_alive()
        ]  # others' numbers may be reused
        for worker in alive:
            worker.process.terminate()
        running = {worker.process.sentinel for worker in alive}
        while running and (left := end - time.monotonic()) > 0:
            running -= {*wait(running, left)}
        if running:
            log.warning("killing %s that did not end in time", count(len(running), "worker"))
        for worker in alive:
            if worker.process.sentinel in running:
                worker.process.kill()
            worker.process.join(1)


@dataclass(eq=False)
class Worker:
    process: BaseProcess
    pipe: Connection
    """Receives an empty text while the worker serves, or the reason why it cannot start."""
    is_replacement: bool = False
    since: float = 0.0
    """When it sent its first message; 0 until it serves."""
    heard: float = 0.0
    """When it last sent a message; 0 until it serves."""
    problem: str = ""

    @property
    def settled(self) -> bool:
        """Whether it serves, and a replacement for long enough."""
        return self.since > 0 and (not self.is_replacement or self.heard - self.since > SETTLED)

    def listen(self) -> None:
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                self.problem = self.pipe.recv()
                self.heard = 0.0 if self.problem else time.monotonic()
                self.since = self.since or self.heard

    def send(self, replacements_fail: bool) -> None:
        with suppress(OSError):  # it has died
            self.pipe.send(replacements_fail)


def death(code: int | None) -> str:
    """How a process ended.

    >>> death(-7), death(1)
    ('SIGBUS', 'exit code 1')
    """
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"exit code {code}"


def space_problem() -> str:
    """A sentence if the temporary folder is full: then writing to a file that is mapped to memory is a SIGBUS."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free >= LITTLE_SPACE:
        return ""
    return f" The temporary folder {folder} has {free / 2**20:.1f} MiB free; make room in it, or set TMPDIR."


@contextmanager
def signals() -> Iterator[Connection]:
    """Receives a message for each SIGTERM and SIGINT."""
    received, send = Pipe(duplex=False)
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: send.send(None)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def new_process(target: Any, arguments: tuple[Any, ...], preload: Sequence[str]) -> BaseProcess:
    """A process that has started. It waits until the forkserver has imported `preload`, the first time.

    The modules must not start threads, because a fork has none of them. EOFError or ConnectionError if the forkserver
    was killed or could not import them.
    """
    context: Any = get_context("forkserver" if CAN_FORK else "spawn")
    process: BaseProcess = context.Process(target=target, args=arguments)
    if CAN_FORK:
        ensure_forkserver(preload)
    process.start()
    return process


def ensure_forkserver(preload: Sequence[str]) -> None:
    """It gets neither SIGTERM nor SIGINT, which some tools send to all processes of a service: without the forkserver
    the exit codes of workers would be lost while they still answer."""
    forkserver.set_forkserver_preload([*preload])
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # else it would import from the current folder
    resource_tracker.ensure_running()  # which would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    try:
        forkserver.ensure_running()
    except OSError as error:
        if "path too long" not in str(error):
            raise
        raise BadOption(
            f"TMPDIR={tempfile.gettempdir()} is too long for a socket; set a shorter one."
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
