"""Starts worker processes: forked from a forkserver that has imported what they need, so that a new one has little to
do but load the model.

Only on Linux: what torch loads on macOS does not survive a fork, so there every worker imports for itself.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from offramp.errors import BadOption

CAN_FORK = sys.platform == "linux"


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
    resource_tracker.ensure_running()  # which would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    try:
        with safe_path():
            forkserver.ensure_running()
    except OSError as error:
        if "path too long" not in str(error):
            raise
        raise BadOption(
            f"TMPDIR={tempfile.gettempdir()} is too long for a socket; set a shorter one."
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def safe_path() -> Iterator[None]:
    """Python does not import from the current folder when it starts here, as the forkserver would."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
