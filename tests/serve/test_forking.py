"""Processes forked from one that has imported modules; each test starts its own interpreter."""

import subprocess
import sys
from pathlib import Path

START = """
import sys
from offramp.errors import OfframpError
from offramp.serve.forking import new_process

def work():
    print("{module}" in sys.modules, flush=True)

if __name__ == "__main__":
    try:
        process = new_process(work, (), ["{module}"])
    except (EOFError, ConnectionError):
        print("died")
    except OfframpError as error:
        print(error)
    else:
        process.join()
"""


def start(folder: Path, module: str, **environment: str) -> str:
    file = folder / "start.py"
    file.write_text(START.format(module=module))
    paths = {"PYTHONPATH": str(folder / "modules"), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**paths, **environment},
        timeout=120,
    )
    return done.stdout.strip()


def module(folder: Path, name: str, code: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code)


def test_a_new_process_finds_the_module_imported(tmp_path: Path) -> None:
    module(tmp_path / "modules", "useful", "")
    assert start(tmp_path, "useful") == "True"


def test_a_module_that_cannot_be_loaded_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    module(tmp_path / "modules", "broken", "raise OSError('a library is missing')")
    assert start(tmp_path, "broken") == "died"


def test_modules_are_not_taken_from_the_current_folder(tmp_path: Path) -> None:
    module(tmp_path / "modules", "useful", "import os; os.write(1, b'right ')")
    module(tmp_path / "elsewhere", "useful", "import os; os.write(1, b'wrong ')")
    (tmp_path / "elsewhere" / "modules").symlink_to(tmp_path / "modules")
    assert start(tmp_path / "elsewhere", "useful").startswith("right")


def test_a_temporary_folder_with_a_very_long_name_works_or_is_explained(tmp_path: Path) -> None:
    """Later versions of Python choose a shorter path themselves."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    module(tmp_path / "modules", "useful", "")
    found = start(tmp_path, "useful", TMPDIR=str(long))
    assert found == "True" or "is too long for a socket; set a shorter one" in found
