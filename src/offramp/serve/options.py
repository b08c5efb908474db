"""The options of a server. Each field is a flag of `offramp serve`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cpus import available_cpus
from offramp.errors import BadOption


@dataclass(frozen=True)
class Limits:
    """How much may wait, and how much runs at once."""

    items: int = 512
    """Texts that may wait. A few seconds' worth of a small encoder on a core or two."""
    tokens: int = 32_768
    """Tokens that may wait, padding included: texts of a request x the longest of them. 512 texts of 64."""
    window: int = 32
    """Texts that run together, fewer if they are long. New requests wait until the window is done."""
    documents: int = 4096
    """Documents that may wait or run in lists that a rank rule ranks; with 64 tokens each on average."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise BadOption(f"the limit {name}={value} must be at least 1.")


@dataclass(frozen=True)
class ServerOptions:
    """What is served, and how; pickled for worker processes."""

    model: Annotated[str, Argument(help="A model with exits, or an exported one.")]
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8000
    probe_port: Annotated[
        int | None,
        Option(
            min=0,
            max=65535,
            help="Port of their own for /health, /ready and /metrics, which then never wait behind requests.",
        ),
    ] = None
    workers: Annotated[int, Option(min=1, help="Processes, each with its own copy of the model.")] = 1
    model_name: Annotated[
        str | None, Option(help="The model's name for clients; by default the last part of its path.")
    ] = None
    any_model_name: Annotated[
        bool, Option("--any-model-name", help="Answer requests for a model of any name.")
    ] = False
    policy: Annotated[
        str | None, Option(help="When to exit, such as entropy:0.3; the model's own policy by default.")
    ] = None
    ladder: Annotated[
        list[Path] | None,
        Option(help="Certified policy for high load, as JSON; repeatable, strictest first."),
    ] = None
    allow: Annotated[list[str] | None, Option(help="Further policy that requests may name; repeatable.")] = (
        None
    )
    device: Annotated[str | None, Option(help="PyTorch device: cpu (default), cuda, cuda:1, mps.")] = None
    threads: Annotated[
        int | None, Option(min=1, help="CPU threads of each worker; by default workers share the cores.")
    ] = None
    max_waiting: Annotated[int, Option(min=1, help="Texts that may wait in each worker.")] = Limits.items
    max_waiting_tokens: Annotated[
        int, Option(min=1, help="Tokens that may wait in each worker, padding included.")
    ] = Limits.tokens
    max_documents: Annotated[
        int, Option(min=1, help="Documents that may wait or run in lists, with the rule rank.")
    ] = Limits.documents
    window: Annotated[int, Option(min=1, help="Texts that run together in one window.")] = Limits.window
    cache: Annotated[
        int, Option(min=0, help="Texts or lists whose predictions each worker keeps for exact repeats.")
    ] = 0
    max_length: Annotated[
        int | None,
        Option(
            min=8,
            help="Tokens per text; longer texts are truncated or refused. By default as in training.",
        ),
    ] = None
    max_connections: Annotated[
        int | None,
        Option(
            min=1,
            help="Connections of each worker; at the limit, idle ones are closed. By default --max-waiting + 1536.",
        ),
    ] = None
    header_seconds: Annotated[
        float, Option(min=0.001, help="How long the head of a request may take to arrive.")
    ] = 10.0
    body_seconds: Annotated[
        float, Option(min=0.001, help="How long the body of a request may take to arrive.")
    ] = 30.0
    max_body: Annotated[int, Option(min=1, help="Bytes per request.")] = 2 << 20
    audit_share: Annotated[
        float, Option(min=0, max=1, help="Share of predictions to compare with the reference.")
    ] = 0.01
    audit_folder: Annotated[
        Path | None,
        Option(
            help="Where the audit is kept between restarts and shared by servers of the same model and policy. By "
            "default offramp/audit in the user's cache."
        ),
    ] = None
    audit_warn_only: Annotated[
        bool, Option("--audit-warn-only", help="Only report certificates that prove wrong; use their rungs.")
    ] = False
    api_key_env: Annotated[
        str | None,
        Option(help="Environment variable with API keys, separated by spaces; requests must send one."),
    ] = None
    api_key_file: Annotated[
        Path | None, Option(help="File with API keys, one per line; read again when it changes.")
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        Option(
            help="Host name that requests may be sent to, or * for any; repeatable. By default localhost if --host "
            "is a loopback address, otherwise any."
        ),
    ] = None
    root_path: Annotated[
        str, Option(help="Prefix of the paths behind a proxy, such as /films, whether it removes it or not.")
    ] = ""
    trusted_proxy: Annotated[
        list[str] | None,
        Option(
            help="Address or network whose X-Forwarded-For and X-Forwarded-Proto are believed, or * for any; "
            "repeatable. By default this machine."
        ),
    ] = None
    drain_seconds: Annotated[
        float, Option(min=0, help="How long to finish accepted requests when stopped.")
    ] = 30.0
    log_texts: Annotated[bool, Option("--log-texts", help="Log the texts of requests.")] = False

    def __post_init__(self) -> None:
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII):
            raise BadOption(f"root_path={self.root_path} is not a path such as /films.")

    @property
    def name(self) -> str:
        return self.model_name or Path(self.model).resolve().name

    @property
    def limits(self) -> Limits:
        return Limits(self.max_waiting, self.max_waiting_tokens, self.window, self.max_documents)

    @property
    def threads_of_worker(self) -> int | None:
        return self.threads or (max(1, available_cpus() // self.workers) if self.workers > 1 else None)
