"""The HTTP endpoints over a `Batcher`.

Requests are parsed and tokenized in reader threads and their results awaited, so the event loop is always free for
the next request and for /health.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

import offramp
from offramp.errors import Draining, Overloaded
from offramp.inference.texts import check_texts
from offramp.policy import Policy
from offramp.serve.batcher import STOPPED, Batcher, Reply
from offramp.serve.error_responses import HANDLERS, ErrorShape, error_models
from offramp.serve.logs import RequestLog, RequestTrace, is_probe, log
from offramp.serve.metrics import Metrics
from offramp.serve.network import Gate
from offramp.serve.options import ServerOptions
from offramp.serve.protocols import CLASSIFY, TAG, Route, hugging_face, open_inference, shape_of
from offramp.serve.protocols.base import Body, Call, ServedModel, WorkerState, check_finite, ready_response
from offramp.serve.security import ANY, Bodies, CheckedHeads, Keys

CLIENT_CLOSED_REQUEST = 499
"""nginx's status, for the log; no client receives it."""
READERS = 2
"""Threads that parse and tokenize; more would take cores from the model."""
UNREAD_BODIES = 32
"""How many bodies of the largest size may be arriving, and as many may wait for a reader."""


class Health(BaseModel):
    status: str


class Ready(BaseModel):
    ready: bool


def create_app(
    batcher: Batcher,
    options: ServerOptions,
    allowed: Mapping[str, Policy],
    shared_folder: Path | None = None,
    state: WorkerState | None = None,
) -> tuple[ASGIApp, Gate]:
    """The app, and the gate before it. `allowed` are the policies that a request may name. In
    `shared_folder` several workers share their metrics."""
    model = ServedModel(options.name, options.any_model_name, batcher, allowed, state or WorkerState())
    endpoints = Endpoints(model, options, shared_folder)
    app = FastAPI(
        title=f"offramp: {options.name}",
        version=offramp.__version__,
        description="Predictions for texts, with early exits.",
        lifespan=endpoints.lifespan,
        exception_handlers=HANDLERS,  # type: ignore[arg-type]
        # machines poll them all the time; versions without telemetry ignore it
        telemetry={"exclude": is_probe},
        redirect_slashes=False,  # to an address with the host that the client named
    )
    keys = [Depends(endpoints.keys.check)] if endpoints.keys else []
    locked: dict[str, Any] = {"dependencies": keys, "responses": error_models(401) if keys else {}}
    app.get("/", response_class=HTMLResponse, include_in_schema=False)(page)
    app.get("/health", response_model=Health)(health)
    app.get("/ready", response_model=Ready, responses=error_models(503))(endpoints.ready)
    app.head("/health", include_in_schema=False)(health)
    app.head("/ready", include_in_schema=False)(endpoints.ready)
    app.get("/info", response_model=dict[str, Any], **locked)(endpoints.info)
    app.get("/metrics", response_class=PlainTextResponse, **locked)(endpoints.scrape)
    refusals = error_models(400, 413, 415, 422, 429, 500, 503) | locked["responses"]
    routes = TAG if model.problem.of_tokens else CLASSIFY
    for route in routes:
        app.post(
            route.path,
            response_model=route.response,
            openapi_extra=route.openapi(model),
            responses=refusals if route.response else None,
            dependencies=[Depends(route.use_errors), *keys],
        )(endpoints.handler(route))
    app.get("/ping", include_in_schema=False)(endpoints.ready)
    app.include_router(open_inference.probes(endpoints.model))
    app.include_router(open_inference.metadata(endpoints.model), dependencies=keys)
    checked = CheckedHeads(app, options.allowed_host or [ANY], options.root_path)
    logged = RequestLog(checked, endpoints.metrics.count_request)

    def errors_at(path: str) -> ErrorShape | None:
        return shape_of(routes, path.removeprefix(options.root_path))

    return logged, Gate(endpoints.check_room, errors_at, logged)


def page() -> Response:
    return HTMLResponse(
        files("offramp.serve").joinpath("page.html").read_text(encoding="utf-8"),
        headers={
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
        },
    )


async def health() -> Health:
    return Health(status="ok")


class Endpoints:
    def __init__(self, model: ServedModel, options: ServerOptions, shared_folder: Path | None) -> None:
        self.model, self.batcher, self.options = model, model.batcher, options
        self.keys = Keys(options.api_key_env, options.api_key_file)
        self.metrics = Metrics(shared_folder)
        self.most_unread = UNREAD_BODIES * options.max_body
        self.bodies = Bodies(options.max_body, self.most_unread, options.body_seconds)
        self.readers = ThreadPoolExecutor(READERS, "reader")
        self.unread = self.unread_bytes = 0
        """Requests that no reader has parsed yet, and the bytes of their bodies."""
        self.counting = threading.Lock()
        self.fingerprint = model.runner.runtime.fingerprint()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(self.refresh_metrics())
        yield
        refreshing.cancel()
        await asyncio.to_thread(self.batcher.drain, 0)  # uvicorn has waited for requests already
        self.readers.shutdown(wait=False)

    async def refresh_metrics(self) -> None:
        """Every second, for the other workers: any of them may be scraped."""
        while True:
            try:
                await asyncio.to_thread(self.metrics.refresh, self.batcher, not self.model.fault)
                await asyncio.to_thread(self.batcher.settle_audit)
            except Exception:
                log.exception("cannot refresh the metrics or the audit")
            await asyncio.sleep(1)

    async def ready(self, request: Request) -> Response:
        return ready_response(self.model, request)

    def info(self) -> Response:
        """The model, its policies with their certificates, the audit, and the limits; and the fields of TEI."""
        runtime, ladder, audit = self.batcher.runner.runtime, self.batcher.ladder, self.batcher.audit
        return Response(
            to_json(
                {
                    "offramp": offramp.__version__,
                    "model": self.options.name,
                    "fingerprint": self.fingerprint,
                    "runtime": runtime.name,
                    "shape": runtime.info.shape,
                    "precision": runtime.precision,
                    "problem": runtime.info.problem,
                    "labels": runtime.info.labels,
                    "decide": str(runtime.info.decide),
                    "pairs": runtime.info.trained_on_pairs,
                    "exits": runtime.info.exits,
                    **describe(ladder.rungs[0]),
                    "ladder": [describe(policy) for policy in ladder.rungs],
                    "rung": ladder.current,
                    "forbidden": [str(policy) for policy in ladder.forbidden],
                    "allowed": self.model.allowed,
                    "audit": audit.reports() if audit else [],
                    "limits": {
                        **vars(self.batcher.limits),
                        "body_bytes": self.options.max_body,
                        "text_tokens": self.batcher.runner.tokenizer.max_length,
                    },
                    **hugging_face.info(self.model, self.batcher.limits, READERS),
                },
                inf_nan_mode="null",
            ),
            media_type="application/json",
        )

    def scrape(self) -> Response:
        """Metrics in Prometheus' text format."""
        self.metrics.refresh(self.batcher, not self.model.fault)
        return PlainTextResponse(self.metrics.render(), media_type="text/plain; version=0.0.4")

    def handler(self, route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def predict(request: Request) -> Response:
            return await self.predict(request, route)

        predict.__doc__ = route.description
        return predict

    async def predict(self, request: Request, route: Route) -> Response:
        arrived, log_fields, trace = request.state.arrived, request.state.log_fields, request.state.trace
        trace.enter()
        try:
            content = await self.bodies.read(request, route.media_types)
            body = Body(content, request.headers, request.state.id, request.path_params, arrived, trace)
            self.check_room(1)
            self.count_unread(1, len(content))
            loop = asyncio.get_running_loop()
            call, future = await loop.run_in_executor(self.readers, self.submit, request, route, body)
            reply = await reply_or_disconnect(request, future)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except asyncio.CancelledError:  # by uvicorn, when the time to drain is over
            raise Draining(STOPPED) from None
        self.metrics.count_texts(reply)
        add_spans(trace, arrived, reply)
        log_fields |= {
            "layers": round(reply.mean_layer, 2),
            "policy": reply.policy,
            "rung": reply.rung,
            "waited_ms": round(reply.waited_ms, 2),
        }
        if not call.has_nulls:
            check_finite(reply)
        return call.respond(reply)

    def check_room(self, requests: int) -> None:
        """Raises an error if there is no room for this many requests, after those that no reader has parsed."""
        self.batcher.check_room(self.unread + requests)
        if self.unread_bytes > self.most_unread:
            raise Overloaded("too many requests wait to be read; retry in 1 s.", retry_after=1)

    def submit(self, request: Request, route: Route, body: Body) -> tuple[Call, Future[Reply]]:
        """Parses a body and queues its texts; runs in a reader thread."""
        try:
            operation = route.choose(body)
            request.state.error_shape = operation.errors
            call = operation.translate(self.model, body)
        finally:
            self.count_unread(-1, -len(body.content))  # from here on the batcher counts its texts
        log_fields, texts = request.state.log_fields, call.request.texts
        log_fields["items"] = len(texts)
        if self.options.log_texts:
            # valid ones: a log in JSON cannot have NaN
            log_fields["texts"] = [*check_texts(texts, mixed=call.request.mixed)]
        return call, self.batcher.submit(call.request)

    def count_unread(self, requests: int, size: int) -> None:
        with self.counting:
            self.unread += requests
            self.unread_bytes += size


def describe(policy: Policy) -> dict[str, Any]:
    return {
        "policy": str(policy),
        "guarantee": policy.certificate and policy.certificate.summary,
        "certificate": policy.to_json()["certificate"],
    }


def add_spans(trace: RequestTrace, arrived: float, reply: Reply) -> None:
    """Records how long an answered request waited and ran."""
    began = arrived + reply.waited_ms / 1000
    trace.add("queue", arrived, began)
    trace.add(
        "run",
        began,
        began + reply.ran_ms / 1000,
        layer=reply.mean_layer,
        policy=reply.policy,
        rung=reply.rung,
        items=len(reply.predictions),
        tokens=reply.tokens,
    )


async def reply_or_disconnect(request: Request, future: Future[Reply]) -> Reply:
    """Waits for the reply. If the client disconnects first, its texts leave the queue."""
    reply = asyncio.wrap_future(future)
    disconnect = asyncio.ensure_future(request.receive())  # after the body, only a disconnect can come
    try:
        await asyncio.wait((reply, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ClientDisconnect
        return reply.result()
    finally:
        disconnect.cancel()
        reply.cancel()  # also cancels it in the batcher
