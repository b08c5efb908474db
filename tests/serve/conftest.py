"""Servers for a tiny model, each in a thread of the test and on its own port."""

import asyncio
import logging
import selectors
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from bench import NORMAL, WAIT, Bench, Make, WordRuntime
from starlette.types import ASGIApp
from transformers import PreTrainedTokenizerFast

from offramp.inference import Classifier, Runner
from offramp.policy import Policy
from offramp.serve.app import create_app
from offramp.serve.audit import Audit
from offramp.serve.batcher import Batcher, Limits
from offramp.serve.cache import Cache
from offramp.serve.ladder import Ladder
from offramp.serve.network import Gate, LimitedConnection, Listener, bind
from offramp.serve.options import ServerOptions

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture(scope="session")
def until() -> Until:
    """until(lambda: ...) waits until that is true."""

    def wait(happened: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(20_000):
            if happened():
                return
            pause.wait(0.01)
        pytest.fail("it never happened")

    return wait


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, until: Until) -> Callable[[int], list[logging.LogRecord]]:
    """logged(2) -> the log records of the two requests so far, awaited: a response is sent before it is logged."""
    caplog.set_level(logging.INFO, logger="offramp")

    def wait(requests: int) -> list[logging.LogRecord]:
        def records() -> list[logging.LogRecord]:
            return [record for record in caplog.records if "path" in getattr(record, "fields", {})]

        until(lambda: len(records()) >= requests)
        return records()

    return wait


@pytest.fixture(scope="session")
def classifier(saved: Path) -> Classifier:
    return Classifier.from_pretrained(saved)


@dataclass
class Door:
    """In front of the first layer: the model waits while it is shut, and raises the fault if there is one."""

    is_open: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    """The model has been called since `shut`."""
    fault: Exception | None = None

    def shut(self) -> None:
        self.is_open.clear()
        self.reached.clear()


@pytest.fixture
def door(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    found, embed = Door(), classifier.runner.runtime.embed
    found.is_open.set()

    def embed_behind_the_door(tokens: Any) -> Any:
        found.reached.set()
        found.is_open.wait()
        if found.fault:
            raise found.fault
        return embed(tokens)

    monkeypatch.setattr(classifier.runner.runtime, "embed", embed_behind_the_door)
    yield found
    found.is_open.set()


@pytest.fixture
def make(tokenizer: PreTrainedTokenizerFast) -> Iterator[Make]:
    made: list[Bench] = []

    def start(
        *looser: Policy,
        rung_0: Policy = NORMAL,
        audit: float = 0.0,
        warn_only: bool = False,
        folder: Path | None = None,
        **limits: int,
    ) -> Bench:
        runtime = WordRuntime()
        runtime.door.set()
        classifier = Classifier(Runner(runtime, tokenizer, rung_0))
        ladder = Ladder([rung_0, *looser], high=0.5, fall=0.0)
        layers, keep = runtime.info.exits, {"folder": folder, "warn_only": warn_only}
        audited = Audit(ladder.rungs, layers, share=audit, **keep) if audit else None
        bench = Bench(runtime, classifier, Batcher(classifier.runner, ladder, Limits(**limits), audited))
        made.append(bench)
        return bench

    yield start
    for bench in made:
        bench.open()
        bench.batcher.drain(WAIT)
        assert not bench.batcher.running


class PausingSelector(selectors.DefaultSelector):
    """Runs `pause` once, after it has looked for what arrived."""

    pause: Callable[[], object] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0 if self.pause else timeout)
        if self.pause:
            pause, self.pause = self.pause, None
            pause()
        return events


class Loop(asyncio.SelectorEventLoop):
    """An event loop that a test can hold, and whose clock it can put forward."""

    def __init__(self) -> None:
        self.selector, self.ahead = PausingSelector(), 0.0
        super().__init__(self.selector)

    def time(self) -> float:
        return super().time() + self.ahead

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Whatever arrives meanwhile waits in the kernel."""
        held, go_on = threading.Event(), threading.Event()
        self.selector.pause = lambda: (held.set(), go_on.wait())
        self.call_soon_threadsafe(lambda: None)
        assert held.wait(60)
        try:
            yield
        finally:
            go_on.set()


@dataclass
class Served:
    batcher: Batcher
    url: str
    client: httpx.Client
    loop: Loop
    app: ASGIApp
    gate: Gate

    def ask(self, texts: Any, **options: Any) -> httpx.Response:
        return self.client.post("/predict", json={"texts": texts, **options})


@pytest.fixture
def serve(classifier: Classifier) -> Iterator[Callable[..., Served]]:
    """serve(limits=..., rungs=..., api_key=..., ...) -> a server that stops with the test."""
    with starting(classifier) as start:
        yield start


@pytest.fixture(scope="session")
def server(classifier: Classifier) -> Iterator[Served]:
    """Shared by tests, with default options."""
    with starting(classifier) as start:
        yield start()


@contextmanager
def starting(classifier: Classifier) -> Iterator[Callable[..., Served]]:
    with ExitStack() as servers:

        def start(
            model: Classifier = classifier,
            limits: Limits | None = None,
            rungs: tuple[Policy, ...] = (),
            audit_share: float = 0.0,
            audit_folder: Path | None = None,
            connections: Mapping[str, Any] | None = None,
            api_key: str | None = None,
            shared_folder: Path | None = None,
            **options: Any,
        ) -> Served:
            ladder = Ladder(rungs or [model.runner.policy])
            audit = (
                Audit(ladder.rungs, model.runner.runtime.info.exits, share=audit_share, folder=audit_folder)
                if audit_share
                else None
            )
            cache = Cache(options["cache"]) if "cache" in options else None
            batcher = Batcher(model.runner, ladder, limits or Limits(), audit, cache=cache)
            allowed = {str(policy): policy for policy in [*ladder.rungs, Policy.parse("never")]}
            if api_key:
                servers.enter_context(pytest.MonkeyPatch.context()).setenv("OFFRAMP_TEST_KEY", api_key)
                options["api_key_env"] = "OFFRAMP_TEST_KEY"
            app, gate = create_app(batcher, ServerOptions("colours", **options), allowed, shared_folder)
            loop = Loop()
            proxies = options.get("trusted_proxy")
            url = servers.enter_context(running(app, loop, {"gate": gate, **(connections or {})}, proxies))
            client = servers.enter_context(httpx.Client(base_url=url, timeout=60))
            return Served(batcher, url, client, loop, app, gate)

        yield start


@contextmanager
def running(
    app: ASGIApp, loop: Loop, connections: Mapping[str, Any], proxies: list[str] | None
) -> Iterator[str]:
    http: Any = partial(LimitedConnection, **{"most": 100, "header_seconds": 60, "by_age": {}, **connections})
    config = uvicorn.Config(app, log_config=None, ws="none", http=http, forwarded_allow_ips=proxies)
    server, listener = uvicorn.Server(config), Listener(bind("127.0.0.1", 0), connections.get("gate"))
    serving = server.serve([listener])
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive(), "the server does not stop"
    loop.close()
