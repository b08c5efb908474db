"""Starts a server: one process, or a parent with several workers that each hold the model."""

import json
import logging
import math
import os
import signal
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
"""Seconds after which a worker that does not move is replaced; loading libraries can take a while."""


@dataclass(frozen=True)
class Settings:
    """What is served, and how. Worker processes get this whole."""

    model: Path
    name: str
    """What the model is called in answers to /info, and on the page."""
    policy: str | None = None
    ladder: tuple[Path, ...] = ()
    """Files of policies for more and more load."""
    allow: tuple[str, ...] = ()
    """Further policies that requests may name."""
    threads: int | None = None
    """Of each worker."""
    limits: Limits = field(default_factory=Limits)
    max_length: int | None = None
    """Tokens of a text; by default as many as the model takes."""
    body_limit: int = 1 << 20
    audit_share: float = 0.01
    """Of the answers that are compared with full depth."""
    api_key: str | None = field(default=None, repr=False)
    log_texts: bool = False
    drain_seconds: float = 30.0


def serve(settings: Settings, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Until SIGTERM or SIGINT; then no more is accepted, and what was accepted is answered."""
    listener = bind(host, port)
    options: dict[str, Any] = {
        "log_config": LOGGING,
        "access_log": False,
        "server_header": False,
        "ws": "none",
        "timeout_graceful_shutdown": math.ceil(settings.drain_seconds),
    }
    if workers == 1:
        config = uvicorn.Config(partial(make_app, settings), factory=True, **options)
        logging.captureWarnings(True)
        config.load()  # here, so that an error is the caller's
        tell_address(listener)
        with stopping_as_asked():
            uvicorn.Server(config).run([listener])
        return
    with shared_folder() as folder:
        config = uvicorn.Config(
            partial(worker_app, settings, folder),
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=SLOWEST_START,
            **options,
        )
        tell_address(listener)
        supervisor = Multiprocess(config, [listener])
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise CannotLoad("no worker could start; the lines above say why.")


def bind(host: str, port: int) -> socket.socket:
    """Not listening yet: whoever comes before the model is there is told so at once."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # with the protocol named, asyncio sends what there is at once; without it, answers wait 40 ms for one another
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listener


def tell_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("serving at %s", url, extra={"fields": {"url": url}})


def make_app(settings: Settings, folder: Path | None = None) -> ASGIApp:
    from offramp.serve.app import Service, create_app  # here, as it loads prometheus_client

    batcher, allowed = load(settings)
    return create_app(
        Service(
            batcher,
            name=settings.name,
            allowed=allowed,
            api_key=settings.api_key,
            body_limit=settings.body_limit,
            log_texts=settings.log_texts,
            shared_folder=folder,
        )
    )


def worker_app(settings: Settings, folder: Path) -> ASGIApp:
    """In a process of its own, where nobody catches an error: the exit code tells the parent not to try again."""
    logging.captureWarnings(True)
    try:
        return make_app(settings, folder)
    except (OfframpError, OSError) as error:
        log.error("%s", error)
        os._exit(STARTUP_FAILURE)  # at once: the parent waits long for one who is alive and says nothing


def load(settings: Settings) -> tuple[Batcher, dict[str, Policy]]:
    """The model at work, and the policies that requests may name."""
    classifier = Classifier.from_pretrained(
        settings.model, settings.policy, threads=settings.threads, max_length=settings.max_length
    )
    rungs = [classifier.policy, *(proven(classifier, path) for path in settings.ladder)]
    share, layers = settings.audit_share, classifier.stages.layers
    audit = Audit(rungs, layers, share=share) if share else None
    batcher = Batcher(classifier, Ladder(rungs), settings.limits, audit)
    further = [classifier.resolve_policy(each) for each in settings.allow]
    return batcher, {str(policy): policy for policy in [*rungs, *further]}


def proven(classifier: Classifier, path: Path) -> Policy:
    """The policy in a file, whose certificate must speak of this model."""
    policy = classifier.resolve_policy(read_policy(path))
    unsaid = [
        name for name in ("policy", "fingerprint", "precision") if not (policy.certificate or {}).get(name)
    ]
    if unsaid:
        raise BadPolicy(
            f"{path}: there is no certificate that says for which {' and '.join(unsaid)} it was made; "
            "make it with `offramp calibrate`."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateMismatch)
        try:
            check_certificate(policy, classifier.stages.about()["fingerprint"], classifier.stages.precision)
        except CertificateMismatch as error:
            raise BadPolicy(f"{path}: {error}") from None
    return policy


def read_policy(path: Path) -> Policy:
    """From what `offramp calibrate --json` prints, or from `Policy.to_json`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["certificate"], dict | None):
            raise TypeError("its certificate is no object")
        if "criterion" in record:
            return Policy.from_json(record)
        return replace(Policy.parse(record["policy"]), certificate=record["certificate"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadPolicy(
            f"{path} holds no policy ({error}); write it with `offramp calibrate ... --dry-run --json > {path}`."
        ) from error


@contextmanager
def stopping_as_asked() -> Iterator[None]:
    """uvicorn raises the signal again when it is done; being stopped in order is success."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """In which workers leave their figures, and what they found broken, for one another."""
    with tempfile.TemporaryDirectory(prefix="offramp-serve-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]
