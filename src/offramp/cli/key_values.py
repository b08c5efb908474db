"""Options typed on the command line as `key=value`, as numbers or as layers."""

from collections.abc import Iterable
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_origin

from offramp.errors import BadOption
from offramp.wording import did_you_mean


def parse_training_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Fields of transformers' TrainingArguments, each converted to the type of the field.

    >>> parse_training_arguments(["save_strategy=no", "tf32=no", "save_total_limit=none"])
    {'save_strategy': 'no', 'tf32': False, 'save_total_limit': None}
    """
    from transformers import TrainingArguments

    from offramp.training.recipes import split_pairs

    types = {field.name: field.type for field in fields(TrainingArguments)}
    arguments = {}
    for name, text in split_pairs(pairs):
        if name not in types:
            raise BadOption(f"--argument: TrainingArguments has no {did_you_mean(name, types)}")
        arguments[name] = convert(name, text, types[name])
    return arguments


def convert(name: str, text: str, hint: Any) -> Any:
    """The text as one of the types of the hint; unchanged if it is none of them and the hint includes `str`."""
    from offramp.training.recipes import parse_value

    allowed = {get_origin(kind) or kind for kind in get_args(hint) or (hint,)}
    value = parse_value(text)
    if float in allowed and type(value) is int:
        return float(value)
    if int in allowed and type(value) is float and value.is_integer():
        return int(value)
    if type(value) in allowed:
        return value
    if str in allowed:
        return text
    if NoneType in allowed and text.lower() == "none":
        return None
    raise BadOption(f"--argument {name}={text}: expected {getattr(hint, '__name__', hint)}")


def parse_exits(text: str) -> int | list[int]:
    """Layers, or one number k for every k-th.

    >>> parse_exits("1-4,6"), parse_exits("2")
    ([1, 2, 3, 4, 6], 2)
    """
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise BadOption(f"--exits {text}: expected layers such as 2,4,6 or 1-6, or one number.")
        layers += range(int(first), int(last or first) + 1)
    if not layers or text.strip() == "0":
        raise BadOption(f"--exits {text}: expected layers from 0, or every k-th with k from 1.")
    return layers[0] if text.strip().isdecimal() else layers


def parse_numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise BadOption(f"{text!r}: expected comma-separated numbers, such as 3,4,5.") from None
