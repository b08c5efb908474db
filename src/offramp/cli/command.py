"""What all commands share: flags, a file of settings, answers for people and machines, errors in one line.

A command is a function that gives an `Answer`. An argument whose type is a dataclass stands for the flags that
are its fields, so that commands can share them.
"""

import inspect
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

import offramp
from offramp.errors import NoSafeThreshold, OfframpError, did_you_mean

EXIT_CODES = {
    0: "done",
    1: "not done, and a line on stderr says why",
    2: "called in a wrong way",
    3: "no threshold reaches the target",
    130: "interrupted",
}


@dataclass(frozen=True)
class Answer:
    """What a command ends with; where it comes bit by bit, lines of either kind, of which one is read."""

    values: Mapping[str, Any] | Iterator[Mapping[str, Any]]
    """For machines."""
    text: str | Iterator[str]
    """For people."""


def quiet() -> None:
    """Keeps the libraries' own messages and bars out of a process that is a command."""
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "DATASETS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(name, value)


def command(work: Callable[..., Answer]) -> Callable[..., None]:
    """The function that typer runs for a command."""
    own = inspect.signature(work).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)
    }

    def run(**flags: Any) -> None:
        as_json, debug = flags.pop("as_json"), flags.pop("debug")
        flags.pop("config")
        for name, group in groups.items():
            flags[name] = group(**{field.name: flags.pop(field.name) for field in fields(group)})
        with errors_in_one_line(debug), notes():
            show(work(**flags), as_json)

    run.__doc__ = work.__doc__
    run.__signature__ = inspect.Signature(flags_of(own, groups))  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flags_of(own, groups)}
    return run


def flags_of(own: Mapping[str, inspect.Parameter], groups: Mapping[str, Any]) -> list[inspect.Parameter]:
    """A parameter for each flag: the command's own, those of its groups, and those of every command."""
    found: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name in groups:
            found += inspect.signature(groups[name]).parameters.values()
        else:
            found.append(parameter)
    found += inspect.signature(of_every_command).parameters.values()
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in found]


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the values in the file the defaults of the flags."""
    if path is not None:
        context.default_map = dict(settings_in(path, context.command.params))
    return path


def of_every_command(
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file of flags, such as `epochs: 2`; flags that are typed win.",
            callback=read_config,
            is_eager=True,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout, for machines.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """The flags of every command."""


def settings_in(path: Path, parameters: list[Any]) -> Iterator[tuple[str, Any]]:
    """The values in a file by the names of the parameters that they are for."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"cannot read {path}: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} should hold lines such as `epochs: 2`")
    known = {flag_name(parameter): parameter for parameter in parameters}
    for key, value in found.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise typer.BadParameter(f"{path}: unknown flag {did_you_mean(name, known)}")
        yield known[name].name, as_typed(value, several=known[name].multiple or known[name].nargs == -1)


def flag_name(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)).lstrip("-").replace("-", "_")


def as_typed(value: Any, several: bool) -> Any:
    """A value of YAML as it would be typed: a mapping is key=value, a list is one flag each or has commas."""
    if isinstance(value, dict):
        value = [f"{key}={each}" for key, each in value.items()]
    if several:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def show(answer: Answer, as_json: bool) -> None:
    if isinstance(answer.values, Mapping):
        print(json.dumps(answer.values, indent=1, default=str) if as_json else answer.text)
    else:
        lines = (json.dumps(record, ensure_ascii=False) for record in answer.values)
        for line in lines if as_json else answer.text:
            print(line)
    sys.stdout.flush()  # so that a full disk or a closed pipe shows here


@contextmanager
def errors_in_one_line(debug: bool) -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:  # whoever read stdout has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        code, line = explained(error)
        say(line)
        raise typer.Exit(code) from None


def explained(error: BaseException) -> tuple[int, str]:
    """Exit code and message."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; what was there before is as it was"
    if isinstance(error, NoSafeThreshold):
        return 3, one_line(error)
    if isinstance(error, ModuleNotFoundError) and (extra := extra_with(error.name)):
        return 1, f"this needs {error.name}, which is not installed. Type: pip install 'offramp[{extra}]'"
    if isinstance(error, OfframpError):
        return 1, one_line(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return 1, f"{place}{error.strerror}"
    return 1, f"{type(error).__name__}: {one_line(error)}. --debug shows where it comes from."


def extra_with(module: str | None) -> str | None:
    """The extra of offramp that brings a module."""
    return offramp._EXTRAS.get((module or "").split(".")[0])


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextmanager
def notes() -> Iterator[None]:
    """Warnings of offramp's own become lines on stderr; those of other libraries are for developers."""
    home = str(Path(offramp.__file__).parent)

    def note(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if filename.startswith(home):
            say(f"note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        yield


def say(line: str) -> None:
    """To the person, beside what the command gives."""
    print(f"offramp: {line}", file=sys.stderr)
