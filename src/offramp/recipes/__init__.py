"""Recipes by name. Each is a function whose arguments are the options of the published method.

Pass a `Recipe` of your own to `train`, or add a function that returns one to `RECIPES`.
"""

from offramp.errors import UnknownName, did_you_mean
from offramp.recipes.base import Phase, Recipe, RecipeMaker
from offramp.recipes.berxit import berxit
from offramp.recipes.deebert import deebert
from offramp.recipes.elasticbert import elasticbert
from offramp.recipes.elbert import elbert
from offramp.recipes.fastbert import fastbert
from offramp.recipes.final import final
from offramp.recipes.frozen import frozen
from offramp.recipes.joint import joint
from offramp.recipes.mixed import mixed
from offramp.recipes.pabee import pabee
from offramp.recipes.romebert import romebert

RECIPES: dict[str, RecipeMaker] = {
    "final": final,
    "deebert": deebert,
    "pabee": pabee,
    "elbert": elbert,
    "romebert": romebert,
    "elasticbert": elasticbert,
    "berxit": berxit,
    "fastbert": fastbert,
    "frozen": frozen,
    "mixed": mixed,
    "joint": joint,
}


def recipe_named(name: str) -> Recipe:
    """The recipe of this name with default options."""
    if name not in RECIPES:
        raise UnknownName(f"unknown recipe {did_you_mean(name, RECIPES)}")
    return RECIPES[name]()


def default_recipe(fine_tuned: bool) -> str:
    """A fine-tuned model is not trained again unless asked for."""
    return "frozen" if fine_tuned else "joint"


__all__ = ["RECIPES", "Phase", "Recipe", "default_recipe", "recipe_named"]
