"""offramp serve: serve a model over HTTP."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.options import DeviceOption, PolicyOption
from offramp.cpus import available_cpus
from offramp.errors import BadOption


def serve(
    model: Annotated[str, Argument(help="A model with exits, or an exported one.")],
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8000,
    workers: Annotated[int, Option(min=1, help="Processes, each with its own copy of the model.")] = 1,
    policy: PolicyOption = None,
    ladder: Annotated[
        list[Path] | None,
        Option(help="Certified policy or rank rule for high load, as JSON; repeatable, strictest first."),
    ] = None,
    allow: Annotated[
        list[str] | None, Option(help="Further policy that requests may name; repeatable.")
    ] = None,
    device: DeviceOption = None,
    threads: Annotated[
        int | None, Option(min=1, help="CPU threads of each worker; by default workers share the cores.")
    ] = None,
    max_waiting: Annotated[int, Option(min=1, help="Texts that may wait in each worker.")] = 512,
    max_waiting_tokens: Annotated[
        int, Option(min=1, help="Tokens that may wait in each worker, padding included.")
    ] = 32_768,
    max_documents: Annotated[
        int, Option(min=1, help="Documents that may wait or run in lists that are ranked by a rule.")
    ] = 4096,
    window: Annotated[int, Option(min=1, help="Texts that run together in one window.")] = 32,
    max_length: Annotated[
        int | None,
        Option(
            min=8,
            help="Tokens per text; longer texts are truncated or refused. By default as in training.",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        Option(
            min=1,
            help="Connections of each worker; at the limit, idle ones are closed. By default --max-waiting + 1536.",
        ),
    ] = None,
    header_seconds: Annotated[
        float, Option(min=0.001, help="How long the head of a request may take to arrive.")
    ] = 10.0,
    body_seconds: Annotated[
        float, Option(min=0.001, help="How long the body of a request may take to arrive.")
    ] = 30.0,
    max_body: Annotated[int, Option(min=1, help="Bytes per request.")] = 2 << 20,
    audit_share: Annotated[
        float, Option(min=0, max=1, help="Share of predictions to compare with the reference.")
    ] = 0.01,
    api_key_env: Annotated[
        str | None, Option(help="Environment variable with the API key that requests must send.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        Option(
            help="Host name that requests may be sent to, or * for any; repeatable. By default localhost if --host "
            "is a loopback address, otherwise any."
        ),
    ] = None,
    drain_seconds: Annotated[
        float, Option(min=0, help="How long to finish accepted requests when stopped.")
    ] = 30.0,
    log_texts: Annotated[bool, Option("--log-texts", help="Log the texts of requests.")] = False,
) -> Result:
    """Serve a model over HTTP.

    POST /predict classifies texts; / is a page to try it; /docs describes all endpoints. The log goes to stderr, one
    JSON object per line. On SIGTERM the server answers the requests it has accepted, then exits with code 0.

    \b
    Examples:
        offramp serve runs/mine
        offramp serve runs/mine --ladder loose.json --ladder looser.json --allow never
        curl --json '{"texts": "a gripping film"}' localhost:8000/predict
    """
    from offramp.folder import find_model
    from offramp.serve.batcher import Limits
    from offramp.serve.server import ServerOptions
    from offramp.serve.server import serve as run

    if threads is None and workers > 1:
        threads = max(1, available_cpus() // workers)
    options = ServerOptions(
        model=find_model(model),
        name=Path(model).resolve().name,
        policy=policy,
        ladder=tuple(ladder or ()),
        allow=tuple(allow or ()),
        device=device,
        threads=threads,
        limits=Limits(items=max_waiting, tokens=max_waiting_tokens, window=window, documents=max_documents),
        max_length=max_length,
        body_limit=max_body,
        audit_share=audit_share,
        api_key=read_key(api_key_env),
        allowed_hosts=tuple(allowed_host or ()),
        max_connections=max_connections,
        header_seconds=header_seconds,
        body_seconds=body_seconds,
        log_texts=log_texts,
        drain_seconds=drain_seconds,
    )
    run(options, host, port, workers)
    return Result({"stopped": True}, "stopped")


def read_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise BadOption(f"--api-key-env {variable}: the variable is not set, or empty.")
    return key
