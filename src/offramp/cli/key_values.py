"""Options typed as `key=value`: of recipes (`name:key=value,key=value`), heads and training arguments."""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml

from offramp.errors import BadOption
from offramp.wording import did_you_mean

if TYPE_CHECKING:
    from offramp.training.recipes import Recipe


def parse_recipe(text: str) -> "Recipe":
    """A recipe with its options, such as `romebert:kind=ta,gamma=0.5`.

    >>> parse_recipe("elbert:weights=equal").phases[0].loss.__name__
    'total'
    """
    from offramp.training.recipes import RECIPES, recipe_named

    name, _, rest = text.partition(":")
    if name not in RECIPES:
        return recipe_named(name)  # raises, with the known names
    options = parse_key_values(rest.split(",") if rest else [])
    known = list(inspect.signature(RECIPES[name]).parameters)
    for key in options:
        if key not in known:
            raise BadOption(f"{name} has no option {did_you_mean(key, known) if known else repr(key)}")
    return RECIPES[name](**options)


def parse_key_values(parts: Iterable[str]) -> dict[str, Any]:
    """Values by key.

    >>> parse_key_values(["rate=5e-5", "gate=true", "kind=ta"])
    {'rate': 5e-05, 'gate': True, 'kind': 'ta'}
    """
    return {key: parse_value(value) for key, value in split_pairs(parts)}


def split_pairs(parts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise BadOption(f"{part!r}: expected key=value.")
        yield key.strip(), value.strip()


def parse_training_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Fields of transformers' TrainingArguments, each converted to the type of the field.

    >>> parse_training_arguments(["save_strategy=no", "tf32=no", "warmup_steps=100"])
    {'save_strategy': 'no', 'tf32': False, 'warmup_steps': 100.0}
    """
    from transformers import TrainingArguments

    types = {field.name: field.type for field in fields(TrainingArguments)}
    arguments = {}
    for name, text in split_pairs(pairs):
        if name not in types:
            raise BadOption(f"--argument: TrainingArguments has no {did_you_mean(name, types)}")
        arguments[name] = convert(name, text, types[name])
    return arguments


def convert(name: str, text: str, hint: Any) -> Any:
    """The text as one of the types of the hint; unchanged if it is none of them and the hint includes `str`."""
    allowed = {get_origin(each) or each for each in get_args(hint) or (hint,)}
    value = parse_value(text)
    if float in allowed and type(value) is int:
        return float(value)
    if int in allowed and type(value) is float and value.is_integer():
        return int(value)
    if type(value) in allowed:
        return value
    if str in allowed:
        return text
    raise BadOption(f"--argument {name}={text}: expected {getattr(hint, '__name__', hint)}")


def parse_value(text: str) -> Any:
    """A YAML value; unlike in YAML, 5e-5 is a number."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def parse_numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise BadOption(f"{text!r}: expected comma-separated numbers, such as 3,4,5.") from None
