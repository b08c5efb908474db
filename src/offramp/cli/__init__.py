"""The command line: a command is a function whose parameters are its flags.

It is in the file of its name; `list` is with `info`, and `predict-files` with `predict`. Commands import torch,
transformers and the rest when they run, so that `offramp --help` is fast. To add a command, write such a function and
add it to COMMANDS.
"""

from collections.abc import Callable
from typing import Annotated

import typer

import offramp
from offramp.cli.bench import bench
from offramp.cli.calibrate import calibrate
from offramp.cli.certify import certify
from offramp.cli.command import EXIT_CODES, Result, command, silence_libraries
from offramp.cli.curve import curve
from offramp.cli.export import export
from offramp.cli.import_checkpoint import import_checkpoint
from offramp.cli.info import info, list_names
from offramp.cli.predict import predict, predict_files
from offramp.cli.rerank import rerank
from offramp.cli.retrofit import retrofit
from offramp.cli.serve import serve
from offramp.cli.trace import trace
from offramp.cli.train import train

COMMANDS: dict[str, Callable[..., Result]] = {
    "retrofit": retrofit,
    "train": train,
    "trace": trace,
    "curve": curve,
    "calibrate": calibrate,
    "certify": certify,
    "predict": predict,
    "predict-files": predict_files,
    "rerank": rerank,
    "serve": serve,
    "bench": bench,
    "export": export,
    "import": import_checkpoint,
    "info": info,
    "list": list_names,
}

CODES = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())


def main() -> None:
    silence_libraries()
    app()


def show_version(requested: bool) -> None:
    if requested:
        print(f"offramp {offramp.__version__}")
        raise typer.Exit


def start(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Early-exit Transformer encoders: add exits, train them, measure exit rules, predict."""


app = typer.Typer(
    name="offramp",
    callback=start,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog=f"Exit codes: {CODES}.",
)
for name, work in COMMANDS.items():
    app.command(name)(command(work))
