"""Who may import whom: the order of the data, as docs/architecture.md draws it."""

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "offramp"

# Each may import those before it. Those in the first line are used by all.
ORDER = """
errors wording numerics problems files cpus lists row_hashes tags
data guarantees trace rules policy
model_info models measuring
folder training runtimes engine inference reports
onnx_export retrofits serve cluster cli
""".split()

EDGES = {"cli", "onnx_export", "retrofits", "serve", "cluster"}
FOLDERS_OF_EQUALS = {"rules"}
WITHOUT_TORCH = (
    "guarantees trace rules policy model_info measuring folder runtimes engine inference reports".split()
)


def imports(file: Path) -> Iterator[list[str]]:
    """Dotted names below offramp that a file imports, split at the dots."""
    gc.disable()  # up to Python 3.11.7, a collection may break a parse that is under way (python/cpython#106905)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    gc.enable()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write the import in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1:] for name in names if name.startswith("offramp."))


def files() -> list[Path]:
    return [file for file in sorted(PACKAGE.rglob("*.py")) if file.parent != PACKAGE or "__" not in file.name]


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_to_what_comes_earlier(file: Path) -> None:
    here = file.relative_to(PACKAGE).with_suffix("").parts
    for there in imports(file):
        assert there[0] in ORDER, f"{there[0]} has no place in the order"
        if there[0] != here[0]:
            assert ORDER.index(there[0]) < ORDER.index(here[0]), f"{here[0]} must not import {there[0]}"
            assert there[0] not in EDGES or here[0] in ("cli", "retrofits"), (
                f"{there[0]} is an edge: only commands import it, and retrofits, which runs all the steps"
            )


@pytest.mark.parametrize("folder", sorted(FOLDERS_OF_EQUALS))
def test_equals_never_import_one_another(folder: str) -> None:
    for file in (PACKAGE / folder).glob("*.py"):
        if file.stem != "__init__":
            package = folder.split("/")
            within = (there[len(package)] for there in imports(file) if there[: len(package)] == package)
            neighbours = {*within} - {"base"}
            assert not neighbours, f"{file.name} imports {neighbours}"


def test_commands_never_import_one_another() -> None:
    shared = {"command", "data", "options", "predictors", "progress", "rows", "targets"}
    for file in (PACKAGE / "cli").glob("*.py"):
        siblings = {there[1] for there in imports(file) if there[0] == "cli" and len(there) > 2}
        assert siblings <= shared or file.stem == "__init__", f"{file.name} imports {siblings - shared}"


def modules_loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after running the code."""
    report = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_offramp_loads_neither_torch_nor_numpy() -> None:
    assert not modules_loaded_by("import offramp") & {"torch", "transformers", "numpy"}


def test_a_classifier_loads_neither_reports_nor_measuring_nor_benchmarks() -> None:
    loaded = modules_loaded_by("import offramp.inference.classifier")
    unneeded = ("data", "training", "measuring", "reports", "serve", "cli")
    assert not [name for name in loaded if name.startswith(tuple(f"offramp.{each}" for each in unneeded))]


def test_the_numpy_side_loads_no_torch() -> None:
    one_by_one = "\n".join(
        f"import offramp.{name}\nassert not {{'torch', 'transformers'}} & {{*sys.modules}}, {name!r}"
        for name in WITHOUT_TORCH
    )
    modules_loaded_by(f"import sys\n{one_by_one}")
