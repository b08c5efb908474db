"""Portable folders of a tiny model, and programs in Node that run them with packages from npm (`make` installs
them)."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import which

import pytest

from offramp.inference import Classifier
from offramp.onnx_export import export
from offramp.onnx_export.portable import write_portable

PACKAGES = Path(sys.prefix) / "clients/node_modules"
PAGE = Path(__file__).parents[2] / "docs/other-languages.md"
PROGRAM = re.compile(r"^```\w+ (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

Run = Callable[..., list[str]]


@pytest.fixture(scope="session")
def own(saved: Path, exported: Path) -> Mapping[str, Path]:
    """Exported folders by precision; texts exit at several layers."""
    sample = [f"{a} {b}" for a in ("good", "bad", "a") for b in "bcdefghi"]
    return {"fp32": exported, "int8": export(saved, saved.parent / "exported-int8", "int8", texts=sample)}


@pytest.fixture(scope="session", params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def portable(own: Mapping[str, Path], precision: str) -> Path:
    """The same model for other libraries."""
    folder = own[precision].parent / f"portable-{precision}"
    write_portable(own[precision], folder)
    return folder


@pytest.fixture(scope="session")
def classifier(own: Mapping[str, Path], precision: str) -> Classifier:
    return Classifier.from_pretrained(own[precision])


@pytest.fixture(scope="session")
def programs() -> Mapping[str, str]:
    """The programs in the docs, by name."""
    return dict(PROGRAM.findall(PAGE.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder of installed packages."""
    if which("node") is None:
        pytest.skip("node is missing")
    if not PACKAGES.is_dir():
        pytest.fail(f"the packages of {Path(__file__).parent}/package.json are missing; run `make test`.")
    return PACKAGES


@pytest.fixture
def node(packages: Path, tmp_path: Path) -> Run:
    """node(program, folder, *texts) -> the lines that it prints."""
    (tmp_path / "node_modules").symlink_to(packages)

    def run(program: str, *arguments: str | Path) -> list[str]:
        (tmp_path / "program.mjs").write_text(program, encoding="utf-8")
        return lines_of(["node", str(tmp_path / "program.mjs"), *map(str, arguments)])

    return run


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """python(program, folder, *texts) -> the lines that it prints; offramp cannot be imported."""

    def run(program: str, *arguments: str | Path) -> list[str]:
        guard = "import sys; sys.modules['offramp'] = None\n"
        (tmp_path / "program.py").write_text(guard + program, encoding="utf-8")
        return lines_of([sys.executable, str(tmp_path / "program.py"), *map(str, arguments)])

    return run


def lines_of(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
