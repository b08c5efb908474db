"""Options that several commands share."""

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.errors import BadOption, OutputExists

if TYPE_CHECKING:
    from offramp.inference.runner import Runner

ModelArgument = Annotated[str, Argument(help="Model folder, training run or hub name.")]
ExitsArgument = Annotated[str, Argument(help="A model with exits, or an exported one.")]
PolicyOption = Annotated[
    str | None, Option(help="When to exit, such as entropy:0.3; the model's own policy by default.")
]
MaxLayerOption = Annotated[int | None, Option(help="Every text exits at this layer at the latest.")]
TextOption = Annotated[str | None, Option(help="Column of the text; guessed from its name by default.")]
TextPairOption = Annotated[str | None, Option(help="Column of the second text, for pairs.")]
DeviceOption = Annotated[str | None, Option(help="PyTorch device: cpu (default), cuda, cuda:1, mps.")]
SafeCsvOption = Annotated[
    bool,
    Option(
        "--safe-csv",
        help="In a csv or tsv file, put ' before texts that a spreadsheet would run as formulas.",
    ),
]
ForceOption = Annotated[bool, Option("--force", help="Replace --out if it exists.")]


@dataclass(frozen=True)
class RuntimeOptions:
    """How a model is run."""

    device: DeviceOption = None
    threads: Annotated[int | None, Option(min=1, help="CPU threads; by default all.")] = None
    max_length: Annotated[
        int | None,
        Option(help="Truncate texts to this many tokens; by default as in training, or the model's limit."),
    ] = None

    def load(self, folder: Path, policy: str | None, **more: Any) -> "Runner":
        from offramp.inference.runner import Runner

        return Runner.from_pretrained(
            folder, policy, device=self.device, threads=self.threads, max_length=self.max_length, **more
        )


def split_names(text: str | None) -> list[str] | None:
    """Names that are separated by commas; None if there are none."""
    return [name.strip() for name in text.split(",")] if text else None


def category_column(by: str | None) -> str | None:
    """The column of categories that --by names; None if it names exits or classes."""
    return None if by in (None, "", "exit", "class") else by


def check_output(out: Path, force: bool | None, *inputs: Path | None, flag: str = "--out") -> None:
    """Refuse an output that exists, that is an input, or that cannot be written, before any work is done.

    `force` is None in commands without --force.
    """
    for source in inputs:
        if source is not None and source.exists() and out.exists() and os.path.samefile(source, out):
            raise BadOption(f"{flag} {out} is also an input; choose another file.")
    if out.exists() and not force and (not out.is_dir() or any(out.iterdir())):
        replaced = "" if force is None else ", or replace it with --force"
        raise OutputExists(f"{out} already exists; choose another {flag}{replaced}.")
    check_writable(out, flag)


def check_writable(out: Path, flag: str = "--out") -> None:
    parent = next(place for place in out.absolute().parents if place.exists())
    if not parent.is_dir():
        raise BadOption(f"{flag} {out}: {parent} exists and is not a folder; choose another place.")
    try:
        TemporaryDirectory(dir=parent).cleanup()
    except OSError:
        raise BadOption(f"{flag} {out}: {parent} is not writable; choose another place.") from None
