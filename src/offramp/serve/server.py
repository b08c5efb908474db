"""Starts a server: one process, or a parent and several workers that each load the model."""

import json
import logging
import math
import os
import signal
import socket
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from offramp.classifier import Classifier
from offramp.errors import BadPolicy, CannotLoad, CertificateMismatch, OfframpError
from offramp.policy import Policy, check_certificate
from offramp.serve.audit import Audit
from offramp.serve.batcher import Batcher, Limits
from offramp.serve.ladder import Ladder
from offramp.serve.logs import LOGGING, log

SLOWEST_START = 60
"""Seconds after which a worker that does not respond is replaced; loading libraries can take a while."""


@dataclass(frozen=True)
class ServerOptions:
    """What is served, and how; pickled for worker processes."""

    model: Path
    name: str
    """The model's name in /info and on the page."""
    policy: str | None = None
    ladder: tuple[Path, ...] = ()
    """Policy files for more and more load."""
    allow: tuple[str, ...] = ()
    """Further policies that requests may name."""
    threads: int | None = None
    """For each worker."""
    limits: Limits = field(default_factory=Limits)
    max_length: int | None = None
    """Tokens per text; by default as many as the model takes."""
    body_limit: int = 1 << 20
    audit_share: float = 0.01
    """The share of predictions that are compared with full depth."""
    api_key: str | None = field(default=None, repr=False)
    log_texts: bool = False
    drain_seconds: float = 30.0


def serve(options: ServerOptions, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Serves until SIGTERM or SIGINT, then answers what it has accepted."""
    listener = bind(host, port)
    uvicorn_options: dict[str, Any] = {
        "log_config": LOGGING,
        "access_log": False,
        "server_header": False,
        "ws": "none",
        "timeout_graceful_shutdown": math.ceil(options.drain_seconds),
    }
    if workers == 1:
        config = uvicorn.Config(partial(make_app, options), factory=True, **uvicorn_options)
        logging.captureWarnings(True)
        config.load()  # now, so that the caller gets its errors
        log_address(listener)
        with ignore_repeated_signal():
            uvicorn.Server(config).run([listener])
        return
    with shared_folder() as folder:
        config = uvicorn.Config(
            partial(worker_app, options, folder),
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=SLOWEST_START,
            **uvicorn_options,
        )
        log_address(listener)
        supervisor = Multiprocess(config, [listener])
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise CannotLoad("no worker could start; see the lines above.")


def bind(host: str, port: int) -> socket.socket:
    """Does not listen yet: a connection before the model is loaded is refused rather than kept waiting."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # asyncio sets TCP_NODELAY only if the protocol is named; without it, responses are delayed by 40 ms
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listener


def log_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("serving at %s", url, extra={"fields": {"url": url}})


def make_app(options: ServerOptions, folder: Path | None = None) -> ASGIApp:
    from offramp.serve.app import (  # late: prometheus_client reads the environment when imported
        Service,
        create_app,
    )

    batcher, allowed = load(options)
    return create_app(
        Service(
            batcher,
            name=options.name,
            allowed=allowed,
            api_key=options.api_key,
            body_limit=options.body_limit,
            log_texts=options.log_texts,
            shared_folder=folder,
        )
    )


def worker_app(options: ServerOptions, folder: Path) -> ASGIApp:
    """The app of a worker process. If it cannot start, the exit code stops the parent from trying again."""
    logging.captureWarnings(True)
    try:
        return make_app(options, folder)
    except (OfframpError, OSError) as error:
        log.error("%s", error)
        os._exit(STARTUP_FAILURE)  # at once: the parent waits long for a worker that is alive but silent


def load(options: ServerOptions) -> tuple[Batcher, dict[str, Policy]]:
    """The batcher, and the policies that requests may name; a policy that the model cannot run is refused here."""
    classifier = Classifier.from_pretrained(
        options.model, options.policy, threads=options.threads, max_length=options.max_length
    )
    rungs = [classifier.policy, *(load_rung(classifier, path) for path in options.ladder)]
    named = by_text([*rungs, *(classifier.resolve_policy(policy) for policy in options.allow)])
    share, layers = options.audit_share, classifier.stages.layers
    audit = Audit(rungs, layers, share=share) if share else None
    batcher = Batcher(classifier, Ladder(rungs), options.limits, audit)
    return batcher, named


def by_text(policies: Iterable[Policy]) -> dict[str, Policy]:
    """Policies by the text that requests name them by."""
    found: dict[str, Policy] = {}
    for policy in policies:
        other = found.setdefault(str(policy), policy)
        if other.criterion != policy.criterion:
            raise BadPolicy(f"two policies are {policy}, fitted to different examples; change one threshold.")
    return found


def load_rung(classifier: Classifier, path: Path) -> Policy:
    """The policy in a file, whose certificate must be for this model."""
    policy = classifier.resolve_policy(read_policy(path))
    if policy.certificate is None:
        raise BadPolicy(f"{path}: the policy has no certificate; create one with `offramp calibrate`.")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateMismatch)
        try:
            check_certificate(policy, classifier.stages.about()["fingerprint"], classifier.stages.precision)
        except CertificateMismatch as error:
            raise BadPolicy(f"{path}: {error}") from None
    return policy


def read_policy(path: Path) -> Policy:
    """Reads the output of `offramp calibrate --json`, or of `Policy.to_json`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Policy.from_json(record.get("saved_policy", record))
    except (ValueError, TypeError, AttributeError, BadPolicy) as error:
        raise BadPolicy(
            f"{path} is not a policy file ({error}); "
            f"create it with `offramp calibrate ... --dry-run --json > {path}`."
        ) from error


@contextmanager
def ignore_repeated_signal() -> Iterator[None]:
    """uvicorn raises the signal again after a graceful stop; without this the exit code would not be 0."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in which workers share their metrics and broken rungs."""
    with tempfile.TemporaryDirectory(prefix="offramp-serve-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]
