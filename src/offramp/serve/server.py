"""Starts a server: one process, or a parent and several workers that each load the model."""

import asyncio
import gc
import json
import logging.config
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from offramp.errors import BadOption, BadPolicy, CertificateMismatch, OfframpError
from offramp.folder import REFERENCE, find_model, is_exported
from offramp.guarantees.attempts import cache_folder
from offramp.guarantees.certificate import check_certificate
from offramp.inference.runner import Runner
from offramp.policy import Policy
from offramp.serve.audit import Audit
from offramp.serve.batcher import Batcher
from offramp.serve.cache import Cache
from offramp.serve.ladder import Ladder
from offramp.serve.logs import LOGGING, is_probe, log, log_warnings
from offramp.serve.network import (
    ACCEPTED_AT_ONCE,
    BACKLOG,
    KEEP_ALIVE,
    Gate,
    LimitedConnection,
    Listener,
    bind,
    connection_limit,
    stop_listening,
    wait_until_stopped,
)
from offramp.serve.options import ServerOptions
from offramp.serve.processes import HEARTBEAT, Supervisor
from offramp.serve.protocols.base import WorkerState
from offramp.serve.security import Keys, default_hosts

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder in which prometheus-client keeps the files of several workers; read when it is imported."""
PROBE_CONNECTIONS = 64
PROBES_END = 2.0
"""Seconds that probes may take to end."""
NOT_A_PROBE = JSONResponse({"error": "not found; this port has only /health, /ready and /metrics."}, 404)
RARE = 1000
"""Collections of younger objects between two full ones; Python's default is 10."""
SWITCH = 0.001
"""Seconds for which a thread may keep Python's lock while others wait for it, a fifth of the default. The event loop
gives it up with every system call, and a connection takes several: beside the model, each could take 5 ms."""
RELOAD = 60.0
"""Seconds between two attempts of a worker to load the original model while it serves."""


class Listeners(NamedTuple):
    """Where a server accepts connections."""

    requests: socket.socket
    probes: socket.socket | None
    """A port of their own, if they have one."""
    most: int
    """Connections to `requests` that each worker may have."""

    def log_addresses(self) -> None:
        for name, listener in (("probes", self.probes), ("serving", self.requests)):
            if listener:
                host, port = listener.getsockname()[:2]
                url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
                log.info("%s at %s", name, url, extra={"fields": {"url": url}})


def serve(options: ServerOptions) -> None:
    """Serves until SIGTERM or SIGINT, then answers what it has accepted."""
    Keys(options.api_key_env, options.api_key_file)  # before anything is loaded
    folder = find_model(options.model)
    logging.config.dictConfig(LOGGING)
    most = connection_limit(options.max_connections, options.max_waiting)
    with bind(options.host, options.port) as requests, bind_probes(options) as probes:
        serve_at(Listeners(requests, probes, most), options, folder)


def bind_probes(options: ServerOptions) -> AbstractContextManager[socket.socket | None]:
    if options.probe_port is None:
        return nullcontext()
    return bind(options.host, options.probe_port, "probe_port")


def serve_at(listeners: Listeners, options: ServerOptions, folder: Path) -> None:
    hosts = options.allowed_host or default_hosts(listeners.requests.getsockname()[0])
    options = replace(
        options,
        model=str(folder),
        model_name=options.name,
        allowed_host=hosts,
        audit_folder=audit_folder(options.audit_folder) if options.audit_share else None,
    )
    if options.workers == 1:
        log_warnings()
        state = WorkerState()
        batcher, app, gate = make_app(options, state)
        listeners.log_addresses()
        run_app(app, gate, state, options, listeners)
        end_with(batcher)
        return
    with shared_folder() as shared:
        options = replace(options, audit_folder=options.audit_folder or shared / "audit")
        parent, _end_of_parent = Pipe(duplex=False)
        Supervisor(
            run_worker,
            (parent, options, listeners, shared),
            wanted=options.workers,
            listener=listeners.requests,
            drain_seconds=options.drain_seconds,
            on_serving=listeners.log_addresses,
            preload=modules_for(folder),
        ).run()


def audit_folder(option: Path | None) -> Path | None:
    """Where the audit is kept, if anywhere."""
    try:
        folder = option or cache_folder() / "audit"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.resolve()
    except (OSError, RuntimeError) as error:  # a user without a home
        problem = getattr(error, "strerror", None) or error
        if option:
            raise BadOption(f"audit_folder={option} cannot be written ({problem}).") from None
        log.warning(
            "the user's cache cannot be written (%s), so the audit starts anew with the server; "
            "name another folder with --audit-folder",
            problem,
        )
        return None


def modules_for(model: Path) -> list[str]:
    """The modules that a worker needs, except ONNX Runtime, which starts a thread when imported. FastAPI imports
    pydantic.v1 when it creates a route, and the script that started the server imports offramp.cli."""
    modules = ["offramp.cli", "offramp.serve.app", "pydantic.v1"]
    return modules if is_exported(model) else [*modules, "offramp.runtimes.torch"]


def run_worker(
    pipe: Connection,
    is_replacement: bool,
    parent: Connection,
    options: ServerOptions,
    listeners: Listeners,
    folder: Path,
) -> None:
    """The main function of a worker process: serves until SIGTERM, or until the supervisor closes its end of `pipe`.
    If the parent was killed, which closes the other end of `parent`, the worker removes the temporary folders."""
    logging.config.dictConfig(LOGGING)
    log_warnings()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # while loading; the server replaces it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which acts
    state = WorkerState()
    threading.Thread(target=follow_supervisor, args=(pipe, state), daemon=True).start()
    os.environ[METRICS_VARIABLE] = str(folder)  # the forkserver may have started for another server
    try:
        try:
            batcher, app, gate = make_app(options, state, folder, is_replacement=is_replacement)
        except Exception as error:
            kind = "" if isinstance(error, OfframpError | OSError) else f"{type(error).__name__}: "
            pipe.send(f"{kind}{error}")
            sys.exit(1)
        run_app(app, gate, state, options, listeners, pipe, has_parent=lambda: not parent.poll())
    finally:
        if parent.poll():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(get_temp_dir(), ignore_errors=True)  # with the socket of the forkserver
    end_with(batcher)


def follow_supervisor(pipe: Connection, state: WorkerState) -> None:
    """Notes whether workers that died cannot be replaced; ends the worker when the pipe is closed."""
    with suppress(EOFError, OSError):
        while pipe.poll(None):
            state.worker_missing = pipe.recv()
    log.error("the parent process has died or dropped this worker; it answers what it has accepted and ends")
    os.kill(os.getpid(), signal.SIGTERM)


def run_app(
    app: ASGIApp,
    gate: Gate | None,
    state: WorkerState,
    options: ServerOptions,
    listeners: Listeners,
    supervisor: Connection | None = None,
    has_parent: Callable[[], bool] = lambda: False,
) -> None:
    async def notify() -> None:
        if supervisor:
            with suppress(OSError):  # the pipe is full or closed: the parent is stopped or has died
                supervisor.send("")

    if supervisor:
        os.set_blocking(supervisor.fileno(), False)
    config = partial(
        uvicorn.Config,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE,
        forwarded_allow_ips=options.trusted_proxy,
    )
    connection = partial(LimitedConnection, header_seconds=options.header_seconds)
    server = Server(
        config(
            app,
            http=partial(connection, most=listeners.most, by_age={}, gate=gate),  # type: ignore[arg-type]
            timeout_graceful_shutdown=math.ceil(options.drain_seconds),
            callback_notify=notify,
            timeout_notify=HEARTBEAT,  # type: ignore[arg-type]
        ),
        state,
        has_parent,
    )
    if listeners.probes:
        http: Any = partial(connection, most=PROBE_CONNECTIONS, by_age={})
        server.probes = ProbeServer(config(OnlyProbes(app), http=http, lifespan="off"), listeners.probes)
    keep_collections_short()
    sys.setswitchinterval(SWITCH)
    with ignore_repeated_signal():
        server.run([Listener(listeners.requests, gate)])


def keep_collections_short() -> None:
    """A full garbage collection stops the whole server: for 300 ms if it searches all that is loaded, torch above
    all, and for 100 ms if 512 requests wait. Requests leave hardly any garbage, so it can be rare."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, RARE)


class Server(uvicorn.Server):
    """Stops listening before it ends. A worker leaves that to its parent while there is one."""

    probes: "ProbeServer | None" = None

    def __init__(self, config: uvicorn.Config, state: WorkerState, has_parent: Callable[[], bool]) -> None:
        super().__init__(config)
        self.state, self.has_parent = state, has_parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        if self.probes:
            self.probes.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.stopping = True
        for listener in sockets or ():
            await asyncio.to_thread(wait_until_stopped if self.has_parent() else stop_listening, listener)
        await super().shutdown(sockets)
        if self.probes:
            await asyncio.to_thread(self.probes.stop)


class ProbeServer(threading.Thread):
    """Answers probes in a thread and an event loop of its own, until the last request is answered."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        self.server = uvicorn.Server(config)
        super().__init__(target=self.server.run, args=([listener],), name="probes", daemon=True)

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.join(PROBES_END)


class OnlyProbes:
    """Middleware that knows only the paths of probes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        probe = scope["type"] == "http" and is_probe(scope)
        await (self.app if probe else NOT_A_PROBE)(scope, receive, send)


def end_with(batcher: Batcher) -> None:
    """Ends the process if a model is still running or being loaded: Python would wait for it, or crash."""
    if batcher.running:
        log.warning("the model did not finish its last window in time")
    if batcher.running or batcher.loading:
        os._exit(0)


def make_app(
    options: ServerOptions,
    state: WorkerState,
    folder: Path | None = None,
    *,
    is_replacement: bool = False,
) -> tuple[Batcher, ASGIApp, Gate]:
    from offramp.serve.app import create_app  # late: prometheus_client reads the environment when imported

    batcher, allowed = load(options, is_replacement=is_replacement)
    return batcher, *create_app(batcher, options, allowed, folder, state)


def load(options: ServerOptions, *, is_replacement: bool = False) -> tuple[Batcher, dict[str, Policy]]:
    """The batcher, and the policies that requests may name; a policy that the model cannot run is refused here.

    A replacement serves before the original model is loaded: only the audit needs it, and an earlier worker has
    loaded it without an error.
    """
    folder = find_model(options.model)
    runner = Runner.from_pretrained(
        folder,
        options.policy,
        device=options.device,
        threads=options.threads_of_worker,
        max_length=options.max_length,
    )
    rungs = [runner.policy, *(load_rung(runner, path) for path in options.ladder or ())]
    allowed = (runner.resolve_policy(policy) for policy in options.allow or ())
    named = by_text([*rungs, *allowed])
    audit: Audit | None = None
    original: Future[Runner] | None = None
    if options.audit_share:
        audit = Audit(
            rungs,
            runner.runtime.info.exits,
            share=options.audit_share,
            folder=options.audit_folder,
            model=runner.runtime.fingerprint(),
            warn_only=options.audit_warn_only,
        )
        if (folder / REFERENCE).is_dir():
            load_it = partial(load_reference, options, runner.tokenizer.max_length)
            if is_replacement:
                original = in_background(load_it)
            else:
                original = Future()
                original.set_result(load_it())
    cache = Cache(options.cache) if options.cache else None
    return Batcher(runner, Ladder(rungs), options.limits, audit, original, cache), named


def load_reference(options: ServerOptions, max_length: int) -> Runner:
    """The model whose predictions the certificate protects."""
    return Runner.from_pretrained(
        find_model(options.model) / REFERENCE,
        "never",
        device=options.device,
        threads=options.threads_of_worker,
        max_length=max_length,
    )


def in_background(load_it: Callable[[], Runner]) -> Future[Runner]:
    """The result of `load_it`, which is called again after a failure. The thread does not keep the process alive."""
    loaded: Future[Runner] = Future()

    def keep_trying() -> None:
        while not loaded.done():
            try:
                loaded.set_result(load_it())
            except Exception as error:
                log.error("the original model cannot be loaded, so nothing is audited: %s", error)
                time.sleep(RELOAD)

    threading.Thread(target=keep_trying, name="offramp-original", daemon=True).start()
    return loaded


def by_text(policies: Iterable[Policy]) -> dict[str, Policy]:
    """Policies by the text that requests name them by."""
    named: dict[str, Policy] = {}
    for policy in policies:
        if named.setdefault(str(policy), policy).rule != policy.rule:
            raise BadPolicy(f"two policies are {policy}, fitted to different examples; change one threshold.")
    return named


def load_rung(runner: Runner, path: Path) -> Policy:
    """The policy in a file, whose certificate must be for this model."""
    policy, runtime = runner.resolve_policy(read_rung(path)), runner.runtime
    if policy.certificate is None:
        raise BadPolicy(f"{path}: the policy has no certificate; create one with `offramp calibrate`.")
    model = runtime.fingerprint(), runtime.precision, runner.tokenizer.max_length
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateMismatch)
        try:
            check_certificate(policy, *model, decision=str(runtime.info.decide))
        except CertificateMismatch as error:
            raise BadPolicy(f"{path}: {error}") from None
    return policy


def read_rung(path: Path) -> Policy:
    """Reads the output of `offramp calibrate --json` or of `Policy.to_json`."""
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
    """A folder in which workers share their metrics, and the audit if it is kept nowhere else."""
    with tempfile.TemporaryDirectory(prefix="offramp-serve-") as folder:
        os.environ[METRICS_VARIABLE] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[METRICS_VARIABLE]
