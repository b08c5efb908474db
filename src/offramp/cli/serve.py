"""offramp serve: a model behind HTTP."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.errors import BadOption


def serve(
    model: Annotated[str, Argument(help="A model with exits, or an exported one.")],
    host: Annotated[str, Option(help="Where to listen; 0.0.0.0 is everywhere.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    workers: Annotated[int, Option(min=1, help="Processes, each with the model.")] = 1,
    policy: Annotated[
        str | None, Option(help="When to leave, such as entropy:0.3; the model's own by default.")
    ] = None,
    ladder: Annotated[
        list[Path] | None,
        Option(help="A policy with its certificate for more load; give several from the strictest on."),
    ] = None,
    allow: Annotated[
        list[str] | None, Option(help="A policy that requests may name, besides those above.")
    ] = None,
    threads: Annotated[
        int | None, Option(min=1, help="Of each worker, on the CPU; by default workers share the cores.")
    ] = None,
    max_waiting: Annotated[int, Option(min=1, help="Texts that may wait in a worker.")] = 512,
    max_waiting_tokens: Annotated[
        int, Option(min=1, help="Tokens that may wait in a worker, padding included.")
    ] = 32_768,
    window: Annotated[int, Option(min=1, help="Texts that run together; others wait for them.")] = 32,
    max_length: Annotated[
        int | None,
        Option(
            min=8,
            help="Tokens of a text, longer ones are cut or refused; by default as many as the model takes.",
        ),
    ] = None,
    max_body: Annotated[int, Option(min=1, help="Bytes of a request.")] = 1 << 20,
    audit_share: Annotated[
        float, Option(min=0, max=1, help="Share of answers to compare with full depth when nothing waits.")
    ] = 0.01,
    api_key_env: Annotated[
        str | None, Option(help="The environment variable that holds the key that requests must bring.")
    ] = None,
    drain_seconds: Annotated[
        float, Option(min=0, help="How long answers may take when the server is stopped.")
    ] = 30.0,
    log_texts: Annotated[bool, Option("--log-texts", help="Write texts into the log.")] = False,
) -> Result:
    """Answer texts over HTTP.

    POST /predict answers; / is a page to try it; /docs describes all endpoints. The log goes to stderr, a JSON
    object on each line. SIGTERM stops: what was accepted is answered, and the exit code is 0.

    \b
    Examples:
        offramp serve runs/mine
        offramp serve runs/mine --ladder lax.json --ladder laxer.json --allow never
        curl --json '{"texts": "a gripping film"}' localhost:8000/predict
    """
    from offramp.serve.batcher import Limits
    from offramp.serve.server import Settings
    from offramp.serve.server import serve as run
    from offramp.store import find_model

    if threads is None and workers > 1:
        threads = max(1, (os.cpu_count() or 1) // workers)
    settings = Settings(
        model=find_model(model),
        name=Path(model).resolve().name,
        policy=policy,
        ladder=tuple(ladder or ()),
        allow=tuple(allow or ()),
        threads=threads,
        limits=Limits(items=max_waiting, tokens=max_waiting_tokens, window=window),
        max_length=max_length,
        body_limit=max_body,
        audit_share=audit_share,
        api_key=key_in(api_key_env),
        log_texts=log_texts,
        drain_seconds=drain_seconds,
    )
    run(settings, host, port, workers)
    return Result({"stopped": True}, "stopped")


def key_in(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise BadOption(f"--api-key-env {variable}: there is no such variable, or it is empty.")
    return key
