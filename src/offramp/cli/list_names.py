"""offramp list: the names that other commands accept."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument

from offramp.cli.command import Result
from offramp.errors import BadOption
from offramp.wording import did_you_mean


def list_names(
    kind: Annotated[str | None, Argument(help="backbones, rules, recipes or tasks; by default all.")] = None,
) -> Result:
    """List backbones, rules, recipes and tasks.

    These are the names that other commands accept.

    \b
    Example:
        offramp list recipes
    """
    if kind is not None and kind not in KINDS:
        raise BadOption(f"cannot list {did_you_mean(kind, KINDS)}")
    found = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    return Result(found, "\n\n".join(section(name, lines) for name, lines in found.items()))


def section(name: str, lines: dict[str, str]) -> str:
    width = max(map(len, lines)) + 2
    return "\n".join([name, *(f"  {each:{width}}{line}" for each, line in lines.items())])


def backbones() -> dict[str, str]:
    from offramp.models.backbones import BACKBONES

    return {name: f"pooling {adapter.pooling} by default" for name, adapter in BACKBONES.items()}


def rules() -> dict[str, str]:
    from offramp.rules import RULES

    return {name: first_line(rule) for name, rule in RULES.items()}


def recipes() -> dict[str, str]:
    from offramp.training.recipes import RECIPES

    return {name: first_line(recipe) + with_options(recipe) for name, recipe in RECIPES.items()}


def tasks() -> dict[str, str]:
    from offramp.data import TASKS

    return {
        name: f"{'regression' if task.labels is None else f'{len(task.labels)} labels'}, "
        f"{'pairs' if len(task.text_columns) == 2 else 'texts'}, scored by {task.headline}"
        for name, task in TASKS.items()
    }


def first_line(thing: Any) -> str:
    """The first paragraph of the docstring of a rule or recipe."""
    return inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def with_options(recipe: Callable[..., Any]) -> str:
    options = [f"{each.name}={each.default}" for each in inspect.signature(recipe).parameters.values()]
    return f" Options: {', '.join(options)}." if options else ""


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "backbones": backbones,
    "rules": rules,
    "recipes": recipes,
    "tasks": tasks,
}
