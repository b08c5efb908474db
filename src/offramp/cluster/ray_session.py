"""A Ray cluster to work on: that of somebody else, or one for the time being."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from offramp.errors import BadOption

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # a cluster of our own tells nobody about itself
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # what matters comes back as an error
    "RAY_worker_niceness": "0",  # the workers are the work here, not something in its background
}
MEMORY = 256 * 2**20
"""For what is on its way between processes, in a cluster of our own: a few pieces for each worker."""


@contextmanager
def joined(address: str | None, cores: int) -> Iterator[None]:
    """In touch with a cluster, and out of touch afterwards.

    Without an address it is the one that this process is in touch with already, or else one of so many cores
    that runs as long as this does.
    """
    if ray.is_initialized() and address is not None:
        raise BadOption(f"this process has joined a cluster already; leave {address} out.")
    if ray.is_initialized():
        with quiet():
            yield
        return
    try:
        start(address, cores)
        with quiet():
            yield
    finally:
        ray.shutdown()


def start(address: str | None, cores: int) -> None:
    own: dict[str, Any] = {"num_cpus": cores, "object_store_memory": MEMORY, "include_dashboard": False}
    settings = {} if address else own
    try:
        if address:
            knock(address)
        with environment(SETTINGS):
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **settings)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"no cluster can be joined at {address}" if address else "no cluster can be started here"
        raise BadOption(f"{where} ({' '.join(str(error).split())}).") from error


def knock(address: str) -> None:
    """An error if nobody listens at a host and port, which Ray would take a minute to find out."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def quiet() -> Iterator[None]:
    """Ray Data's messages go to its log files alone; what went wrong comes back as an error."""
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
