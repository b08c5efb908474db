"""Settings typed as `key=value`: of recipes (`name:key=value,key=value`), heads and training arguments."""

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import yaml

from offramp.errors import BadOption, did_you_mean

if TYPE_CHECKING:
    from offramp.recipes import Recipe


def parse_recipe(text: str) -> "Recipe":
    """A recipe with its settings, such as `romebert:kind=ta,gamma=0.5`.

    >>> parse_recipe("elbert:weights=equal").phases[0].loss.__name__
    'total'
    """
    from offramp.recipes import RECIPES, recipe_named

    name, _, rest = text.partition(":")
    if name not in RECIPES:
        return recipe_named(name)  # raises, with the known names
    settings = parse_settings(rest.split(",") if rest else [])
    known = list(inspect.signature(RECIPES[name]).parameters)
    for key in settings:
        if key not in known:
            raise BadOption(f"{name} has no setting {did_you_mean(key, known) if known else repr(key)}")
    return RECIPES[name](**settings)


def parse_settings(parts: Iterable[str]) -> dict[str, Any]:
    """Values by key.

    >>> parse_settings(["rate=5e-5", "gate=true", "kind=ta"])
    {'rate': 5e-05, 'gate': True, 'kind': 'ta'}
    """
    settings = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise BadOption(f"{part!r}: expected key=value.")
        settings[key.strip()] = parse_value(value.strip())
    return settings


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
