"""What all commands share: flags, settings files, output for people and machines, one-line errors.

A command is a function that returns a `Result`. A parameter whose type is a dataclass stands for one flag per
field, so that commands can share groups of flags.
"""

import inspect
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import yaml
from typer.models import OptionInfo

import offramp
from offramp.errors import (
    EXTRAS,
    BadPolicy,
    MissingExtra,
    NoSafeThreshold,
    OfframpError,
    extra_with,
    install_hint,
    is_installed,
)
from offramp.wording import did_you_mean

EXIT_CODES = {
    0: "success",
    1: "error, explained in one line on stderr",
    2: "usage error, or rows that certify cannot compare",
    3: "no threshold reaches the target, or a claim of certify is not proven",
    130: "interrupted",
}

FLAG_OF_ARGUMENT = {
    "epsilon": "guarantee",
    "folder": "data",
    "label_names": "labels",
    "mean": "budget",
    "num_train_epochs": "epochs",
    "output_dir": "out",
    "per_device_train_batch_size": "batch_size",
    "points": "max_loss",
    "problem_type": "problem",
    "ratio": "min_speedup",
    "texts": "data",
}
"""Python arguments whose flag has another name."""


@dataclass(frozen=True)
class Result:
    """What a command prints: one record, or a stream of records, which is read in one of the two forms only."""

    values: Mapping[str, Any] | Iterator[Mapping[str, Any]]
    """For machines, with --json."""
    text: str | Iterator[str]
    """For people."""
    exit_code: int = 0


class BadInput(OfframpError):
    """Rows or options of a command whose exit code tells them from other failures."""


def silence_libraries() -> None:
    """Keep messages and progress bars of other libraries out of a command's output."""
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "DATASETS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(name, value)


def command(work: Callable[..., Result]) -> Callable[..., None]:
    """The function that typer runs for a command."""
    declared = inspect.signature(work).parameters
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in declared.items()
        if is_dataclass(parameter.annotation)
    }
    parameters = flag_parameters(declared, groups)
    names = flag_names(parameters)

    def run(**flags: Any) -> None:
        as_json, debug = flags.pop("as_json"), flags.pop("debug")
        flags.pop("config")
        for name, group in groups.items():
            flags[name] = group(**{field.name: flags.pop(field.name) for field in fields(group)})
        model = flags.get("model") or getattr(flags.get("options"), "model", None)
        with report_errors(names, debug), report_warnings(names), name_extras(work.__name__, model):
            result = work(**flags)
            show(result, as_json)
            if result.exit_code:
                raise typer.Exit(result.exit_code)

    run.__doc__ = work.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def flag_parameters(
    declared: Mapping[str, inspect.Parameter], groups: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """A parameter for each flag: the command's own, its groups', and those that every command has."""
    parameters: list[inspect.Parameter] = []
    for name, parameter in declared.items():
        if name in groups:
            parameters += inspect.signature(groups[name]).parameters.values()
        else:
            parameters.append(parameter)
    parameters += inspect.signature(common_flags).parameters.values()
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]


def flag_names(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """The flag to type for each Python argument, as in {"num_train_epochs": "--epochs"}."""
    options = [
        parameter.name
        for parameter in parameters
        if any(isinstance(extra, OptionInfo) for extra in parameter.annotation.__metadata__)
    ]
    names = {name: name for name in options}
    names |= {argument: name for argument, name in FLAG_OF_ARGUMENT.items() if name in options}
    return {argument: f"--{name.replace('_', '-')}" for argument, name in names.items()}


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values in the file the defaults of the flags."""
    if path is not None:
        context.default_map = dict(read_settings(path, context.command.params))
    return path


def common_flags(
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with values for flags, such as `epochs: 2`; the command line overrides it.",
            callback=read_config,
            is_eager=True,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """The flags of every command."""


def read_settings(path: Path, parameters: list[Any]) -> Iterator[tuple[str, Any]]:
    """The values in a settings file by parameter name."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"cannot read {path}: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise typer.BadParameter(f"{path}: expected lines such as `epochs: 2`")
    flags = {long_name(parameter): parameter for parameter in parameters}
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if name not in flags:
            raise typer.BadParameter(f"{path}: unknown flag {did_you_mean(name, flags)}")
        yield flags[name].name, as_typed(value, several=flags[name].multiple or flags[name].nargs == -1)


def long_name(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)).lstrip("-").replace("-", "_")


def as_typed(value: Any, several: bool) -> Any:
    """A YAML value as typed: a mapping becomes key=value; a list becomes repeated flags, or is comma-separated."""
    if isinstance(value, dict):
        value = [f"{key}={part}" for key, part in value.items()]
    if several:
        return [str(part) for part in (value if isinstance(value, list) else [value])]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def show(result: Result, as_json: bool) -> None:
    if isinstance(result.values, Mapping):
        print_to(
            sys.stdout, json.dumps(result.values, indent=1, default=str) if as_json else str(result.text)
        )
    else:
        lines = (json.dumps(record, ensure_ascii=False, default=str) for record in result.values)
        for line in lines if as_json else result.text:
            print_to(sys.stdout, line)
    sys.stdout.flush()  # so that a full disk or a closed pipe is reported here


EXTRAS_OF = {
    "retrofit": ["train"],
    "train": ["train"],
    "curve": ["measure"],
    "calibrate": ["measure"],
    "predict_files": ["ray"],
    "serve": ["serve"],
    "export": ["export"],
    "import_checkpoint": ["train"],
}
"""The extras that each command needs, apart from that of the model's runtime."""


@contextmanager
def name_extras(command: str, model: str | None) -> Iterator[None]:
    """If a package is missing, name every extra that is missing: the package's, the command's and the model's."""
    try:
        yield
    except ImportError as error:
        if (extra := extra_with(error.name)) is None:
            raise
        from offramp.folder import is_exported

        runtime = []
        if model is not None:
            runtime = ["onnx" if is_exported(model) or is_exported(f"{model}/model") else "train"]
        needed = dict.fromkeys([extra, *EXTRAS_OF.get(command, []), *runtime])
        missing = [name for name in needed if name == extra or not is_installed(name)]
        if isinstance(error, MissingExtra) and missing == [extra]:
            raise
        top = str(error.name).split(".")[0]  # it may be there and still not be importable
        names = (name for name in missing for name in EXTRAS[name].split())
        modules = [name for name in names if name == top or not find_spec(name)]
        raise MissingExtra(f"this command {install_hint(', '.join(modules), ','.join(missing))}") from error


@contextmanager
def report_errors(flags: Mapping[str, str], debug: bool) -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:  # the reader of stdout, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        code, message = describe(error)
        # a policy is written the same way everywhere
        log(message if isinstance(error, BadPolicy) else with_flags(message, flags))
        raise typer.Exit(code) from None


def describe(error: BaseException) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; run the same command again to resume"
    if isinstance(error, OfframpError):
        code = 3 if isinstance(error, NoSafeThreshold) else 2 if isinstance(error, BadInput) else 1
        return code, one_line(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return 1, f"{place}{error.strerror}"
    return 1, f"{type(error).__name__}: {one_line(error)}. Add --debug for the traceback."


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ASSIGNMENT = re.compile(
    r"(?<![\w/.,:-])(?P<name>\w+)="  # after a colon or comma it is an option of a policy or recipe
    r"(?:\.\.\.|\[(?P<list>[^\]]*)\]|(?P<quote>['\"])(?P<quoted>.*?)(?P=quote)|(?P<bare>[^\s,;:()]*[^\s,;:().]))"
)


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message of the library with the flags to type in place of Python arguments.

    >>> flags = {"bad_rows": "--bad-rows", "exits": "--exits", "output_dir": "--out"}
    >>> with_flags('Fix the file, or pass bad_rows="drop".', flags)
    'Fix the file, or pass --bad-rows drop.'
    >>> with_flags("exits=[2, 9] of 4 layers; choose another output_dir.", flags)
    '--exits 2,9 of 4 layers; choose another --out.'
    >>> with_flags("write patience:3,tolerance=0.1", {"tolerance": "--tolerance"})
    'write patience:3,tolerance=0.1'
    """

    def assignment(match: re.Match[str]) -> str:
        if match["name"] not in flags:
            return match[0]
        value = match["quoted"] or match["bare"] or (match["list"] or "").replace(", ", ",")
        return f"{flags[match['name']]} {'' if value == 'True' else value}".rstrip()

    message = ASSIGNMENT.sub(assignment, message)
    for argument in FLAG_OF_ARGUMENT:
        if argument in flags and "_" in argument:  # other arguments may just be words
            message = re.sub(rf"(?<![\w/.-]){argument}(?![\w/-]|\.\w)", flags[argument], message)
    return message


@contextmanager
def report_warnings(flags: Mapping[str, str]) -> Iterator[None]:
    """Print offramp's own warnings to stderr, and drop those of other libraries, which are for developers."""
    home = str(Path(offramp.__file__).parent)

    def show_warning(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if filename.startswith(home):
            log(f"warning: {with_flags(str(message), flags)}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show_warning  # type: ignore[assignment]
        yield


def log(line: str) -> None:
    """Print to stderr, so that stdout holds the result alone."""
    print_to(sys.stderr, f"offramp: {line}")


def print_to(stream: TextIO, text: str) -> None:
    """On a terminal, control characters are shown rather than obeyed: texts and labels may come from strangers."""
    if stream.isatty():
        text = CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)  # as in JSON
    print(text.encode("utf-8", "backslashreplace").decode(), file=stream)  # invalid surrogates, as in JSON
