"""A Ray session: connects to a running cluster, or starts a local one that is stopped afterwards."""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import ray
from ray._private import ray_constants

from offramp.errors import BadOption

RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry from a cluster that we start
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors come back as exceptions
    "RAY_worker_niceness": "0",  # the workers are the main job here, not background work
}
LOCAL_VARIABLES = RAY_VARIABLES | {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as it is there, listen on the loopback interface alone
}
OBJECT_STORE = 256 * 2**20
"""Bytes of the object store of a local cluster: a few blocks for each worker."""


@contextmanager
def connect(address: str | None, cores: int) -> Iterator[None]:
    """Connects to the cluster at an address. Without one, uses the session that this process already has, or starts
    a local cluster with this many cores."""
    if ray.is_initialized() and address is not None:
        raise BadOption(f"this process is already connected to a Ray cluster; leave out address={address!r}.")
    if ray.is_initialized():
        with mute_ray_data():
            yield
        return
    try:
        start(address, cores)
        with mute_ray_data(), nullcontext() if address else agents_end_with_this_process():
            yield
    finally:
        ray.shutdown()


def start(address: str | None, cores: int) -> None:
    local: dict[str, Any] = {
        "num_cpus": cores,
        "object_store_memory": OBJECT_STORE,
        "include_dashboard": False,
    }
    try:
        if address:
            check_reachable(address)
        with environment(RAY_VARIABLES if address else LOCAL_VARIABLES), loopback(not address):
            ray.init(
                address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else local),
            )
    except (OSError, RuntimeError, ValueError) as error:
        failure = f"cannot connect to a Ray cluster at {address}" if address else "cannot start Ray"
        raise BadOption(f"{failure} ({' '.join(str(error).split())}).") from error


@contextmanager
def loopback(only: bool) -> Iterator[None]:
    """Makes this process listen where `LOCAL_VARIABLES` make those of Ray listen, which read them at their start."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = before and not only
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def check_reachable(address: str) -> None:
    """Fails at once if nothing listens at a host and port; Ray would take a minute to find out."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


WATCH = """
import os, signal, sys
from contextlib import suppress

sys.stdin.read()
for pid in sys.argv[1:]:
    with suppress(OSError), open(f"/proc/{pid}/comm") as name:
        if name.read().startswith("ray::"):
            os.kill(int(pid), signal.SIGKILL)
"""
"""Waits for the end of its input, and then kills agents."""


@contextmanager
def agents_end_with_this_process() -> Iterator[None]:
    """If this process is killed, the kernel ends what it started, except Ray's agents, which would linger."""
    import psutil  # comes with Ray

    children = psutil.Process().children(recursive=True)
    agents = [child.pid for child in children if child.name().startswith("ray::")]
    command = [sys.executable, "-c", WATCH, *map(str, agents)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watcher.kill()
        watcher.communicate()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def mute_ray_data() -> Iterator[None]:
    """Ray Data logs to its files only; errors come back as exceptions."""
    handlers = [
        handler
        for handler in logging.getLogger("ray.data").handlers
        if type(handler).__name__ == "PlainRayHandler"
    ]
    levels = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)
