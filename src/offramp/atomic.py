"""Files and folders that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from offramp.errors import OutputExists


def write_files(texts: Mapping[Path, str]) -> None:
    """Several files: all are written, or all stay as they were."""
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside(path).write_text(text, encoding="utf-8", newline="")
        for path in texts:
            beside(path).replace(path)
    finally:
        for path in texts:
            beside(path).unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Where to write a file, which takes its place when all of it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield beside(path)
        beside(path).replace(path)
    finally:
        beside(path).unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place when all is in it; one that holds something is left alone."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputExists(f"{path} is there already; choose another folder, or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside(path).mkdir()
    try:
        yield beside(path)
        beside(path).replace(path)
    finally:
        shutil.rmtree(beside(path), ignore_errors=True)


def beside(path: Path) -> Path:
    """Where something is while it is being written: near its place, so that it can be moved there at once."""
    return path.with_name(f".{path.name}.{os.getpid()}.unfinished")
