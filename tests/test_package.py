"""The front of the package: public names, extras, versions."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offramp

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there() -> None:
    for name in offramp.__all__:
        assert getattr(offramp, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = offramp.nonsense


@pytest.mark.parametrize("policy", ["entropyy:0.3", "entropy:much", "entropy:0.3,depth=2"])
def test_a_bad_argument_is_a_value_error(policy: str) -> None:
    with pytest.raises(ValueError, match=r"entropy|much|depth") as caught:
        offramp.Policy.parse(policy)
    assert isinstance(caught.value, offramp.OfframpError)


def test_a_missing_extra_gives_the_pip_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offramp, "import_module", import_without("torch"))
    with pytest.raises(offramp.MissingExtra, match=re.escape("pip install 'offramp[train]'")):
        _ = offramp.ExitModel


def import_without(missing: str) -> Callable[..., Any]:
    def importer(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    return importer


def test_the_base_dependencies_hold_no_framework() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    assert not names & {"torch", "transformers", "datasets", "accelerate", "scikit-learn", "scipy"}


def test_constraints_pin_the_cpu_build_of_torch() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in pins
    assert project_version() == offramp.__version__


def project_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
