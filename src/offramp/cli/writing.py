"""Files that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from offramp.errors import BadRequest


def write_whole(texts: Mapping[Path, str]) -> None:
    """Several files: all are written, or all stay as they were."""
    try:
        for path, text in texts.items():
            half(path).write_text(text, encoding="utf-8", newline="")
        for path in texts:
            half(path).replace(path)
    finally:
        for path in texts:
            half(path).unlink(missing_ok=True)


def half(path: Path) -> Path:
    """Where something is while it is being written: beside its place, so that it can be moved there at once."""
    return path.with_name(f".{path.name}.{os.getpid()}.unfinished")


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file to write to, which takes its place when all of it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with half(path).open("w", encoding="utf-8", newline="") as file:
            yield file
        half(path).replace(path)
    finally:
        half(path).unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place when all is in it; one that holds something is left alone."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadRequest(f"{path} is there already; choose another --out, or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    half(path).mkdir()
    try:
        yield half(path)
        half(path).replace(path)
    finally:
        shutil.rmtree(half(path), ignore_errors=True)
