"""offramp info and offramp list: describe a model, and list the names that other commands accept."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from offramp.cli.command import Result
from offramp.cli.options import ModelArgument
from offramp.errors import BadOption, CannotLoad
from offramp.wording import did_you_mean

if TYPE_CHECKING:
    from offramp.policy import Policy


def info(model: ModelArgument) -> Result:
    """Describe a model.

    Prints its backbone, exits, head, labels, parameters, policy and certificate.

    \b
    Example:
        offramp info runs/mrpc
    """
    from offramp.folder import find_model, is_exported
    from offramp.folder.manifest import Manifest
    from offramp.model_info import ModelInfo
    from offramp.reports.table import short

    folder = find_model(model)
    model_info, runtime = ModelInfo.read(folder), "PyTorch"
    if is_exported(folder):
        manifest = Manifest.load(folder)
        model_info, runtime = manifest.check(model_info), f"ONNX Runtime, {manifest.precision}"
    elif model_info.policy is not None and model_info.policy.certificate is not None:
        model_info = replace(model_info, policy=checked_policy(folder, model_info.policy))
    values = {
        "folder": str(folder),
        "backbone": model_info.backbone,
        "layers": model_info.exits[-1],
        "exits": list(model_info.exits),
        "head": dict(model_info.head),
        "problem": model_info.problem,
        "labels": list(model_info.labels),
        "decide": str(model_info.decide) or model_info.problem.decides,
        "runtime": runtime,
        "parameters": parameters(folder),
        "policy": None,
        "certificate": None,
    }
    shown = dict(values)
    if (policy := model_info.policy) is not None:
        values |= {"policy": str(policy), "certificate": policy.to_json()["certificate"]}
        shown |= {"policy": short(policy), "certificate": policy.certificate and policy.certificate.summary}
    width = max(map(len, shown)) + 2
    return Result(values, "\n".join(f"{name:{width}}{format_value(value)}" for name, value in shown.items()))


def checked_policy(folder: Path, policy: "Policy") -> "Policy":
    """Without its certificate if the weights are not those that it was issued for; as it is where torch, which reads
    them, is not installed."""
    from offramp.inference.runner import Runner

    return policy if find_spec("torch") is None else Runner.from_pretrained(folder, policy).policy


def parameters(folder: Path) -> int | None:
    """The number of weights, from the headers of the safetensors files; None for an exported model."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="numpy") as weights:
                total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise CannotLoad(f"{file} is damaged ({error}); save the model again.") from error
    return total or None


def format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


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
    names = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    return Result(names, "\n\n".join(section(name, lines) for name, lines in names.items()))


def section(name: str, lines: dict[str, str]) -> str:
    width = max(map(len, lines)) + 2
    return "\n".join([name, *(f"  {entry:{width}}{line}" for entry, line in lines.items())])


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
    options = [f"{option.name}={option.default}" for option in inspect.signature(recipe).parameters.values()]
    return f" Options: {', '.join(options)}." if options else ""


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "backbones": backbones,
    "rules": rules,
    "recipes": recipes,
    "tasks": tasks,
}
