"""The wheel, installed into an environment that has nothing but what it declares."""

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from transformers import PreTrainedTokenizerFast

from offramp.inference import Classifier, Runner
from offramp.models.exit_model import ExitModel
from offramp.onnx_export import export

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = place.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Path:
    return made(wheel.parent / "environment", wheel)


def made(home: Path, wheel: Path, *extras: str) -> Path:
    """An empty environment with the wheel, and links to the dependencies of it that this one has."""
    venv.create(home, with_pip=False, symlinks=True)
    install = [
        "--python",
        str(home / "bin/python"),
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
        str(wheel),
    ]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for needed in {each.metadata["Name"]: each for each in required("offramp", extras)}.values():
        link(needed, packages)
    return home


def required(name: str, extras: tuple[str, ...] = ()) -> Iterator[Distribution]:
    """The distributions that one asks for, and what those ask for."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield distribution(requirement.name)
            yield from required(requirement.name, tuple(requirement.extras))


def link(package: Distribution, folder: Path) -> None:
    tops = {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(package.locate_file(top))))


def called(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    program = str(environment / "bin" / command[0])
    return subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)


def test_the_wheel_runs_with_its_base_dependencies_alone(environment: Path) -> None:
    shown = called(environment, "offramp", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "calibrate" in shown.stdout
    rules = called(environment, "offramp", "list", "rules")
    assert "patience" in rules.stdout, rules.stderr


def test_what_needs_an_extra_says_which(environment: Path) -> None:
    assert called(environment, "python", "-c", "import torch").returncode == 1
    missing = called(environment, "offramp", "list", "recipes")
    assert missing.returncode == 1
    assert "pip install 'offramp[train]'" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_an_exported_model_runs_where_the_extra_onnx_alone_is_installed(
    wheel: Path, make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = make_model(labels=["red", "green", "blue"])
    folder = export(model, tmp_path / "exported", tokenizer=tokenizer)
    environment = made(wheel.parent / "with-onnx", wheel, "onnx")
    for absent in ("torch", "transformers", "onnx", "datasets"):
        assert called(environment, "python", "-c", f"import {absent}").returncode == 1
    texts = ["good film", "bad bad bad", "a b c d e f g"]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    question = ["predict", str(folder), str(tmp_path / "texts.txt"), "--policy", "confidence:0.775", "--json"]
    asked = called(environment, "offramp", *question)
    assert asked.returncode == 0, asked.stderr
    expected = Classifier(Runner(model, tokenizer, "confidence:0.775")).predict(texts)
    printed = [json.loads(line) for line in asked.stdout.splitlines()]
    assert [(each["label"], each["layer"]) for each in printed] == [
        (each.label, each.layer) for each in expected
    ]


def test_the_wheel_is_what_the_checkout_holds(environment: Path) -> None:
    (installed,) = environment.glob("lib/python*/site-packages/offramp")
    here = ROOT / "src/offramp"
    there = {
        str(file.relative_to(installed)) for file in installed.rglob("*") if "__pycache__" not in file.parts
    }
    assert there == {
        str(file.relative_to(here)) for file in here.rglob("*") if "__pycache__" not in file.parts
    }
