"""The HTTP side: endpoints over a `Batcher`.

Reading, checking and tokenizing a request happen in threads of their own, and waiting is awaited, so that the
event loop is always free for the next request and for /health.
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
from offramp.serve.error_responses import EXPLANATIONS, problem, problems
from offramp.serve.ladder import share_broken
from offramp.serve.logs import Watched, log
from offramp.serve.metrics import Metrics
from offramp.serve.schema import Answer, Health, Question, Ready, question_schema

CLIENT_GONE = 499
"""As other servers log it; nobody receives it."""
READERS = 2
"""Threads that read and tokenize; more would take the model's cores."""
FULL_BODIES = 32
"""As many of the largest size may wait to be read."""


@dataclass(frozen=True)
class Service:
    """What is served, and to whom."""

    batcher: Batcher
    name: str
    """Of the model."""
    allowed: Mapping[str, Policy]
    """Policies that a request may name."""
    api_key: str | None = None
    body_limit: int = 1 << 20
    """Bytes of a request."""
    log_texts: bool = False
    shared_folder: Path | None = None
    """For what several workers tell one another."""


def create_app(service: Service) -> ASGIApp:
    endpoints = Endpoints(service)
    app = FastAPI(
        title=f"offramp: {service.name}",
        version=offramp.__version__,
        description="Answers texts, each at a layer of its own.",
        lifespan=endpoints.running,
    )
    locked = [Depends(endpoints.check_key)] if service.api_key else []
    refused = [401] if service.api_key else []
    app.get("/", response_class=HTMLResponse, include_in_schema=False)(page)
    app.get("/health", response_model=Health)(health)
    app.get("/ready", response_model=Ready, responses=problems(503))(endpoints.ready)
    app.get("/info", response_model=dict[str, Any], dependencies=locked, responses=problems(*refused))(
        endpoints.info
    )
    app.get("/metrics", response_class=PlainTextResponse, dependencies=locked, responses=problems(*refused))(
        endpoints.tell_metrics
    )
    app.post(
        "/predict",
        response_model=Answer,
        dependencies=locked,
        responses=problems(400, *refused, 413, 415, 422, 429, 500, 503),
        openapi_extra={"requestBody": endpoints.body_schema()},
    )(endpoints.predict)
    for kind, explanation in EXPLANATIONS.items():
        app.exception_handler(kind)(explanation)
    return Watched(app, endpoints.metrics.request)


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
        """Bytes that wait to be read."""
        self.about = self.batcher.classifier.stages.about()

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.create_task(self.look())
        yield
        looking.cancel()
        await asyncio.to_thread(self.batcher.drain, 0)  # the server has waited for requests already
        self.readers.shutdown(wait=False)

    async def look(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.metrics.look, self.batcher)
                if self.service.shared_folder:
                    await asyncio.to_thread(share_broken, self.batcher.ladder, self.service.shared_folder)
            except Exception:
                log.exception("metrics, and what other workers found broken, are not up to date")
            await asyncio.sleep(1)

    async def check_key(
        self, given: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
    ) -> None:
        wanted = (self.service.api_key or "").encode()
        # headers are read as Latin-1, whatever they are
        if given is None or not hmac.compare_digest(given.credentials.encode("latin-1"), wanted):
            raise HTTPException(
                401,
                "this needs the server's key, as the header `Authorization: Bearer KEY`.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def ready(self, request: Request) -> Response:
        if self.batcher.healthy:
            return JSONResponse({"ready": True})
        return problem(request, 503, "the model is not fit to answer; the server's log says how.")

    def info(self) -> Response:
        """What is served: model, policies with their certificates, what the audit found, limits."""
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
                    "certificate": ladder.rungs[0].certificate,
                    "ladder": [
                        {"policy": str(policy), "certificate": policy.certificate} for policy in ladder.rungs
                    ],
                    "rung": self.batcher.rung,
                    "forbidden": [str(policy) for policy in ladder.forbidden],
                    "allowed": self.allowed(),
                    "audit": audit.accounts() if audit else [],
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

    def tell_metrics(self) -> Response:
        """In Prometheus' text form."""
        self.metrics.look(self.batcher)
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    def body_schema(self) -> dict[str, Any]:
        schema = question_schema(self.service.allowed, self.batcher.classifier.stages.layers)
        return {"required": True, "content": {"application/json": {"schema": schema}}}

    async def predict(self, request: Request) -> Response:
        """Answer one text, a list of texts, or a list of pairs, each at a layer of its own."""
        told = request.state.told
        try:
            question, future = await self.admitted(await self.body(request), told)
            reply = await unless_gone(request, future)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except asyncio.CancelledError:  # by the server, when there is no more time to drain
            raise Draining(STOPPED) from None
        self.metrics.answered(reply.predictions, reply.rung)
        told |= {
            "layers": round(sum(each.layer for each in reply.predictions) / len(reply.predictions), 2),
            "policy": reply.policy,
            "rung": reply.rung,
            "waited_ms": round(reply.waited_ms, 2),
        }
        answer = Answer.of(reply, question.probabilities)
        return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")

    async def body(self, request: Request) -> bytes:
        """Whole, unless it is too large or of another kind."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
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

    async def admitted(self, body: bytes, told: dict[str, Any]) -> tuple[Question, Future[Reply]]:
        """A place in the queue."""
        if self.unread > FULL_BODIES * self.service.body_limit:
            raise Overloaded("there is too much to read; try again.", retry_after=1)
        self.unread += len(body)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.readers, self.admit, body, told)
        finally:
            self.unread -= len(body)

    def admit(self, body: bytes, told: dict[str, Any]) -> tuple[Question, Future[Reply]]:
        question = Question.read(body)
        texts = question.texts if isinstance(question.texts, list) else [question.texts]
        told["items"] = len(texts)
        if self.service.log_texts:
            told["texts"] = texts
        request = batcher.Request(
            texts=texts,
            policy=self.named(question.policy),
            max_layer=question.max_layer,
            deadline_ms=question.deadline_ms,
            trace=question.trace,
            truncate=question.truncate,
        )
        return question, self.batcher.submit(request)

    def named(self, policy: str | None) -> Policy | None:
        if policy is None:
            return None
        allowed = self.allowed()
        if policy not in allowed:
            others = f", or take one of {', '.join(allowed)}" if allowed else ""
            raise BadOption(f"policy {policy} is not allowed here; leave it out{others}.")
        return self.service.allowed[policy]

    def allowed(self) -> list[str]:
        """The policies that a request may name now: not those of forbidden rungs."""
        forbidden = {str(policy) for policy in self.batcher.ladder.forbidden}
        return [name for name in self.service.allowed if name not in forbidden]


async def unless_gone(request: Request, future: Future[Reply]) -> Reply:
    """The reply; but if the client goes first, its place is given up."""
    reply = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(request.receive())  # after the body, only a disconnect can come
    try:
        await asyncio.wait((reply, gone), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ClientDisconnect
        return reply.result()
    finally:
        gone.cancel()
        reply.cancel()  # also in the batcher
