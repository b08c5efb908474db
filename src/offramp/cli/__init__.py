"""The command line: one file for each command, a function whose arguments are its flags.

A command loads torch, transformers and the rest when it runs, so that `offramp --help` needs none of them. To
add one, write such a function in a file here and give it a line in COMMANDS.
"""

from collections.abc import Callable
from typing import Annotated

import typer

import offramp
from offramp.cli.bench import bench
from offramp.cli.calibrate import calibrate
from offramp.cli.command import EXIT_CODES, Answer, command, quiet
from offramp.cli.curve import curve
from offramp.cli.demo import demo
from offramp.cli.export import export
from offramp.cli.import_checkpoint import import_checkpoint
from offramp.cli.info import info
from offramp.cli.list_names import list_names
from offramp.cli.predict import predict
from offramp.cli.predict_files import predict_files
from offramp.cli.serve import serve
from offramp.cli.trace import trace
from offramp.cli.train import train

COMMANDS: dict[str, Callable[..., Answer]] = {
    "train": train,
    "trace": trace,
    "curve": curve,
    "calibrate": calibrate,
    "predict": predict,
    "predict-files": predict_files,
    "serve": serve,
    "bench": bench,
    "export": export,
    "import": import_checkpoint,
    "info": info,
    "demo": demo,
    "list": list_names,
}

CODES = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())


def main() -> None:
    quiet()
    app()


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"offramp {offramp.__version__}")
        raise typer.Exit


def start(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Early-exit Transformer encoders: put exits on one, train them, measure every rule, run it.

    \b
    Example, from nothing to a measured model in a few minutes:
        offramp demo
    """


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
