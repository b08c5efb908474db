"""Recipes and their options on the command line."""

import inspect
from dataclasses import fields
from typing import Any

import pytest
from transformers import BertConfig, TrainingArguments

from offramp import RECIPES
from offramp.cli.train import parse_exits, parse_training_arguments
from offramp.errors import BadOption, UnknownName
from offramp.training.recipes import Recipe, parse_recipe
from offramp.training.start import Origin


def as_data(recipe: Recipe) -> list[dict[str, Any]]:
    """A recipe as data that compares by value: two partials of one loss are never equal."""
    return [
        {
            **{field.name: getattr(phase, field.name) for field in fields(phase)},
            "loss": getattr(phase.loss, "func", phase.loss),
            "settings": getattr(phase.loss, "keywords", {}),
        }
        for phase in recipe.phases
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_a_name_alone_is_the_recipe_with_its_defaults(name: str) -> None:
    assert as_data(parse_recipe(name)) == as_data(RECIPES[name]())


@pytest.mark.parametrize("name", [name for name in RECIPES if inspect.signature(RECIPES[name]).parameters])
def test_every_setting_can_be_typed(name: str) -> None:
    defaults = {each.name: each.default for each in inspect.signature(RECIPES[name]).parameters.values()}
    typed = ",".join(f"{key}={'null' if value is None else str(value)}" for key, value in defaults.items())
    assert as_data(parse_recipe(f"{name}:{typed}")) == as_data(RECIPES[name]())


def test_settings_reach_the_recipe() -> None:
    typed = parse_recipe("romebert:kind=ta,gamma=0.5,gradients=plain")
    assert as_data(typed) == as_data(RECIPES["romebert"](kind="ta", gamma=0.5, gradients="plain"))


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("romebrt", UnknownName, "romebert"),
        ("romebert:kin=ta", BadOption, "kind"),
        ("romebert:ta", BadOption, "key=value"),
        ("pabee:rate=1", BadOption, "rate"),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint(text: str, error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint):
        parse_recipe(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("save_strategy=no", "no"),
        ("eval_strategy=no", "no"),
        ("bf16=no", False),
        ("max_steps=5e2", 500),
        ("learning_rate=5e-5", 5e-5),
        ("run_name=12", "12"),
        ("data_seed=null", None),
        ("save_total_limit=none", None),
        ("report_to=none", "none"),
        ("bf16=true", True),
        ("lr_scheduler_kwargs={num_cycles: 2}", {"num_cycles": 2}),
    ],
)
def test_a_training_argument_has_the_type_of_its_field(text: str, value: Any) -> None:
    name = text.partition("=")[0]
    parsed = parse_training_arguments([text])
    assert parsed == {name: value}
    assert type(parsed[name]) is type(value)
    TrainingArguments("unused", **parsed, use_cpu=True)


@pytest.mark.parametrize("text", ["seed=x", "bf16=maybe", "max_steps=1.5"])
def test_a_training_argument_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=f"--argument {text}: expected"):
        parse_training_arguments([text])


def test_a_model_with_one_output_and_no_problem_type_is_a_regression() -> None:
    def options(labels: int) -> dict[str, Any]:
        origin = Origin("classifier", BertConfig(num_labels=labels), fine_tuned=True)
        return origin.label_options(parse_recipe("frozen"))

    assert options(1) == {"problem_type": "regression", "unlabelled": ["train"]}
    assert options(2) == {
        "problem_type": "single_label_classification",
        "labels": ["LABEL_0", "LABEL_1"],
        "unlabelled": ["train"],
    }


@pytest.mark.parametrize(
    ("text", "exits"),
    [("1-12", [*range(1, 13)]), ("0-2,4", [0, 1, 2, 4]), ("2,4", [2, 4]), ("2", 2), ("3-3", [3])],
)
def test_exits_are_layers_ranges_or_every_kth(text: str, exits: int | list[int]) -> None:
    assert parse_exits(text) == exits


@pytest.mark.parametrize("text", ["two", "-1", "1-", "4-1", "0", "", "1--3"])
def test_exits_that_are_no_layers_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--exits"):
        parse_exits(text)
