"""The HTTP endpoints over a `Batcher`.

Requests are parsed and tokenized in reader threads and their results awaited, so the event loop is always free for
the next request and for /health.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

import offramp
from offramp.errors import BadOption, Draining, Overloaded
from offramp.policy import Policy
from offramp.serve import batcher
from offramp.serve.batcher import STOPPED, Batcher, Reply
from offramp.serve.error_responses import HANDLERS, error_models, error_response
from offramp.serve.ladder import sync_broken
from offramp.serve.logs import RequestLog, log
from offramp.serve.metrics import Metrics
from offramp.serve.schema import Health, PredictRequest, PredictResponse, Ready, request_schema

CLIENT_CLOSED_REQUEST = 499
"""nginx's status, for the log; no client receives it."""
READERS = 2
"""Threads that parse and tokenize; more would take cores from the model."""
UNREAD_BODIES = 32
"""How many bodies of the largest size may wait for a reader."""


@dataclass(frozen=True)
class Service:
    """What is served, and to whom."""

    batcher: Batcher
    name: str
    """The model's."""
    allowed: Mapping[str, Policy]
    """Policies that a request may name."""
    api_key: str | None = None
    body_limit: int = 1 << 20
    """Bytes of a request."""
    log_texts: bool = False
    shared_folder: Path | None = None
    """Where several workers share which rungs are broken."""


def create_app(service: Service) -> ASGIApp:
    endpoints = Endpoints(service)
    app = FastAPI(
        title=f"offramp: {service.name}",
        version=offramp.__version__,
        description="Text classification with early exits.",
        lifespan=endpoints.lifespan,
    )
    locked: dict[str, Any] = {}
    if service.api_key:
        locked = {"dependencies": [Depends(endpoints.check_key)], "responses": error_models(401)}
    app.get("/", response_class=HTMLResponse, include_in_schema=False)(page)
    app.get("/health", response_model=Health)(health)
    app.get("/ready", response_model=Ready, responses=error_models(503))(endpoints.ready)
    app.get("/info", response_model=dict[str, Any], **locked)(endpoints.info)
    app.get("/metrics", response_class=PlainTextResponse, **locked)(endpoints.scrape)
    schema = request_schema(service.allowed, service.batcher.classifier.stages.layers)
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    refusals = error_models(400, 413, 415, 422, 429, 500, 503)
    app.post(
        "/predict",
        response_model=PredictResponse,
        openapi_extra={"requestBody": body},
        **locked | {"responses": refusals | locked.get("responses", {})},
    )(endpoints.predict)
    for kind, handler in HANDLERS.items():
        app.exception_handler(kind)(handler)
    return RequestLog(app, endpoints.metrics.count_request)


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
    def __init__(self, service: Service) -> None:
        self.service = service
        self.batcher = service.batcher
        self.metrics = Metrics()
        self.readers = ThreadPoolExecutor(READERS, "reader")
        self.unread = 0
        """Bytes that wait for a reader."""
        self.about = self.batcher.classifier.stages.about()

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
                await asyncio.to_thread(self.metrics.refresh, self.batcher)
                if self.service.shared_folder:
                    await asyncio.to_thread(sync_broken, self.batcher.ladder, self.service.shared_folder)
            except Exception:
                log.exception("cannot refresh the metrics or the rungs that other workers found broken")
            await asyncio.sleep(1)

    async def check_key(
        self, given: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
    ) -> None:
        key = (self.service.api_key or "").encode()
        # starlette decodes headers as Latin-1, whatever bytes were sent
        if given is None or not hmac.compare_digest(given.credentials.encode("latin-1"), key):
            raise HTTPException(
                401,
                "send the server's key in the header `Authorization: Bearer KEY`.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def ready(self, request: Request) -> Response:
        if self.batcher.healthy:
            return JSONResponse({"ready": True})
        return error_response(request, 503, "the model failed its test; see the server's log.")

    def info(self) -> Response:
        """The model, its policies with their certificates, the audit, and the limits."""
        stages, ladder, audit = self.batcher.classifier.stages, self.batcher.ladder, self.batcher.audit
        return Response(
            to_json(
                {
                    "offramp": offramp.__version__,
                    "model": self.service.name,
                    **self.about,
                    "precision": stages.precision,
                    "problem": stages.problem_type,
                    "labels": stages.labels,
                    "exits": stages.layers,
                    "policy": str(ladder.rungs[0]),
                    "certificate": ladder.rungs[0].to_json()["certificate"],
                    "ladder": [
                        {"policy": str(policy), "certificate": policy.to_json()["certificate"]}
                        for policy in ladder.rungs
                    ],
                    "rung": ladder.current,
                    "forbidden": [str(policy) for policy in ladder.forbidden],
                    "allowed": self.allowed(),
                    "audit": audit.reports() if audit else [],
                    "limits": {
                        **vars(self.batcher.limits),
                        "body_bytes": self.service.body_limit,
                        "text_tokens": self.batcher.classifier.tokenizer.max_length,
                    },
                },
                inf_nan_mode="null",
            ),
            media_type="application/json",
        )

    def scrape(self) -> Response:
        """Metrics in Prometheus' text format."""
        self.metrics.refresh(self.batcher)
        return PlainTextResponse(self.metrics.render(), media_type="text/plain; version=0.0.4")

    async def predict(self, request: Request) -> Response:
        """Classify one text, a list of texts, or a list of pairs, each with its own exit layer."""
        log_fields = request.state.log_fields
        try:
            options, future = await self.enqueue(await self.body(request), log_fields)
            reply = await reply_or_disconnect(request, future)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except asyncio.CancelledError:  # by uvicorn, when the time to drain is over
            raise Draining(STOPPED) from None
        self.metrics.count_texts(reply.predictions, reply.rung)
        log_fields |= {
            "layers": round(sum(each.layer for each in reply.predictions) / len(reply.predictions), 2),
            "policy": reply.policy,
            "rung": reply.rung,
            "waited_ms": round(reply.waited_ms, 2),
        }
        response = PredictResponse.from_reply(reply, options.probabilities)
        return Response(response.model_dump_json(exclude_unset=True), media_type="application/json")

    async def body(self, request: Request) -> bytes:
        """The whole body, unless it is too large or not declared as JSON."""
        content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if content_type != "application/json":
            raise HTTPException(415, "send JSON, with the header `Content-Type: application/json`.")
        limit, body = self.service.body_limit, bytearray()
        too_large = HTTPException(413, f"the body is larger than {limit} bytes; send fewer texts at a time.")
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_large
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_large
        return bytes(body)

    async def enqueue(self, body: bytes, log_fields: dict[str, Any]) -> tuple[PredictRequest, Future[Reply]]:
        if self.unread > UNREAD_BODIES * self.service.body_limit:
            raise Overloaded("too many requests wait to be read; retry in 1 s.", retry_after=1)
        self.unread += len(body)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.readers, self.submit, body, log_fields)
        finally:
            self.unread -= len(body)

    def submit(self, body: bytes, log_fields: dict[str, Any]) -> tuple[PredictRequest, Future[Reply]]:
        """Parses a body and queues its texts; runs in a reader thread."""
        options = PredictRequest.read(body)
        texts = options.texts if isinstance(options.texts, list) else [options.texts]
        log_fields["items"] = len(texts)
        if self.service.log_texts:
            log_fields["texts"] = texts
        request = batcher.Request(
            texts=texts,
            policy=self.named_policy(options.policy),
            max_layer=options.max_layer,
            deadline_ms=options.deadline_ms,
            trace=options.trace,
            truncate=options.truncate,
        )
        return options, self.batcher.submit(request)

    def named_policy(self, name: str | None) -> Policy | None:
        if name is None:
            return None
        allowed = self.allowed()
        if name not in allowed:
            others = f", or use one of {', '.join(allowed)}" if allowed else ""
            raise BadOption(f"policy {name} is not allowed; omit it{others}.")
        return self.service.allowed[name]

    def allowed(self) -> list[str]:
        """The policies that a request may name now; those of forbidden rungs are left out."""
        forbidden = {str(policy) for policy in self.batcher.ladder.forbidden}
        return [name for name in self.service.allowed if name not in forbidden]


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
