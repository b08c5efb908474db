"""The text form of a policy, `name:threshold,key=value`, for the command line and for logs.

`entropy:0.3` · `entropy:0.1/0.2/0.3` (one for each exit) · `patience:3,tolerance=0.1` · `never,max_layer=6` ·
`confidence:0.9,min_layer=2`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from itertools import takewhile
from typing import Any, get_args, get_type_hints

from offramp.errors import BadPolicy
from offramp.rules import RULES
from offramp.rules.base import FITTED, Rule
from offramp.wording import did_you_mean

LIMITS = ("min_layer", "max_layer")


def read(text: str) -> dict[str, Any]:
    """The fields of the policy that a text form describes."""
    head, *rest = (part.strip() for part in text.split(","))
    name, colon, first = head.partition(":")
    numbers = [first, *takewhile(lambda part: "=" not in part, rest)] if colon else []
    settings = _parse_settings(rest[max(len(numbers) - 1, 0) :])

    kind = rule_class(name)
    known = [*option_names(kind), *LIMITS]
    for key in settings:
        if key not in known:
            raise BadPolicy(f"{name} has no option {did_you_mean(key, known)}")
    if not kind.takes_threshold and numbers:
        raise BadPolicy(f"{name} takes no threshold; write just {name}.")
    if kind.takes_threshold and not numbers:
        raise BadPolicy(f"{name} needs a threshold: write {name}:VALUE.")

    options = {key: _parse_option(kind, key, settings[key]) for key in option_names(kind) if key in settings}
    return {
        "rule": kind(**options),
        "threshold": tuple(map(_parse_number, "/".join(numbers).split("/"))) if numbers else 0.0,
        **{key: _parse_number(settings[key], int) for key in LIMITS if key in settings},
    }


def write(rule: Rule, threshold: float | tuple[float, ...], limits: Mapping[str, int | None]) -> str:
    """The text form; options at their default are left out, unless marked `ALWAYS_WRITTEN`."""
    name = rule_name(rule)
    numbers = threshold if isinstance(threshold, tuple) else (threshold,)
    head = f"{name}:{'/'.join(map(_format_value, numbers))}" if rule.takes_threshold else name
    options = [
        f"{option.name}={_format_value(getattr(rule, option.name))}"
        for option in fields(rule)  # type: ignore[arg-type]
        if option.name in option_names(type(rule))
        and (option.metadata or getattr(rule, option.name) != option.default)
    ]
    bounds = [f"{key}={layer}" for key, layer in limits.items() if layer is not None]
    return ",".join([head, *options, *bounds])


def rule_name(rule: Rule) -> str:
    """The name of this rule in `RULES`."""
    for name, kind in RULES.items():
        if kind is type(rule):
            return name
    kind = type(rule)
    raise BadPolicy(f"{kind.__name__} is not registered; add it first: RULES['my_rule'] = {kind.__name__}.")


def rule_class(name: str) -> type[Rule]:
    if name not in RULES:
        raise BadPolicy(f"unknown rule {did_you_mean(name, RULES)}")
    if RULES[name].needs_labels:
        raise BadPolicy(f"{name} needs labels, so it has no text form; it is for curves only.")
    return RULES[name]


def option_names(kind: type[Rule]) -> list[str]:
    """The options that a person can set, in order."""
    settable = (option for option in fields(kind) if option.default is not MISSING)  # type: ignore[arg-type]
    return [option.name for option in settable if option.metadata != FITTED]


def fitted_names(kind: type[Rule]) -> list[str]:
    return [option.name for option in fields(kind) if option.metadata == FITTED]  # type: ignore[arg-type]


def rule_in_text(text: str) -> type[Rule] | None:
    """The rule that a text form names, also without a threshold; None if there is no such rule.

    >>> rule_in_text("entropy").__name__, rule_in_text("never,max_layer=6").__name__, rule_in_text("entrpy:0.3")
    ('Entropy', 'Never', None)
    """
    return RULES.get(re.split("[:,]", text)[0].strip())


def round_threshold(value: float) -> float:
    """Four significant digits; close to 1, two significant digits of the distance to 1.

    >>> round_threshold(0.47421046), round_threshold(0.98765432), round_threshold(0.999953421)
    (0.4742, 0.9877, 0.999953)
    """
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    if 0.9 < value < 1:
        digits = max(digits, 1 - math.floor(math.log10(1 - value)))
    return round(value, digits)


def _parse_settings(parts: Iterable[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise BadPolicy(f"{part!r} should be an option and its value, key=value.")
        if key in settings:
            raise BadPolicy(f"{key} is set twice; leave one out.")
        settings[key] = value
    return settings


def _parse_option(kind: type[Rule], name: str, text: str) -> Any:
    hint = get_type_hints(kind)[name]
    types = get_args(hint) or (hint,)
    if bool in types:
        if text not in ("true", "false"):
            raise BadPolicy(f"{name}={text} should be {name}=true or {name}=false.")
        return text == "true"
    return _parse_number(text, int if int in types else float) if {int, float} & {*types} else text


def _parse_number(text: str, kind: type[float] = float) -> float:
    try:
        return kind(text)
    except ValueError:
        raise BadPolicy(f"{text!r} should be a {'whole ' if kind is int else ''}number.") from None


def _format_value(value: Any) -> str:
    """The shortest form that reads back exactly."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)).removesuffix(".0") if isinstance(value, int | float) else str(value)
