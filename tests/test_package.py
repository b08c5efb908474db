"""The front of the package: public names, extras, versions."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import offramp

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", offramp.__all__)
def test_a_public_name_is_that_of_a_class_a_function_or_a_registry_with_entries(name: str) -> None:
    value = getattr(offramp, name)
    assert len(value) > 1 if name.isupper() else value.__name__ == name
    assert name in dir(offramp)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = offramp.nonsense


@pytest.mark.parametrize("policy", ["entropyy:0.3", "entropy:much", "entropy:0.3,depth=2"])
def test_a_bad_argument_is_a_value_error(policy: str) -> None:
    with pytest.raises(ValueError, match=r"entropy|much|depth") as caught:
        offramp.Policy.parse(policy)
    assert isinstance(caught.value, offramp.OfframpError)


def test_a_missing_extra_gives_the_pip_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    missing_extra = offramp.MissingExtra
    monkeypatch.setattr(offramp, "import_module", import_without("torch"))
    with pytest.raises(missing_extra, match=re.escape("pip install 'offramp[train]'")):
        _ = offramp.ExitModel


def import_without(missing: str) -> Callable[..., Any]:
    def importer(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    return importer


def test_the_base_dependencies_hold_no_framework() -> None:
    names = {Requirement(line).name for line in project()["dependencies"]}
    assert not names & {"torch", "transformers", "datasets", "accelerate", "scikit-learn", "scipy"}


def test_constraints_pin_a_torch_that_offramp_accepts_and_nothing_of_cuda() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    accepted = [
        requirement
        for extra in project()["optional-dependencies"].values()
        for requirement in map(Requirement, extra)
        if requirement.name == "torch"
    ]
    assert accepted
    assert all(requirement.specifier.contains(pins["torch"]) for requirement in accepted)
    assert not [name for name in pins if "nvidia" in name or "cuda" in name]


def test_the_version_is_that_of_the_project() -> None:
    assert project()["version"] == offramp.__version__


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found
