"""Write files and folders completely or not at all; read JSON; hash contents.

Output is written to a scratch folder beside its target, `.NAME.RANDOM.unfinished`, and then renamed. A killed writer
leaves its scratch folder behind; the next writer of the same target removes it once nothing in it has changed for an
hour, so that a slow writer that is still running is left alone.

Several files cannot be renamed in one step, so their scratch folder is: to `.NAME.RANDOM.complete`, from which they
are then moved. If the writer is killed in between, the next reader or writer moves the rest.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError

from offramp.errors import CannotLoad, OfframpError, OutputExists

SUFFIX, COMPLETE = ".unfinished", ".complete"
STALE_SECONDS = 3600
TORCH_WRITER = re.compile("inline_container|PytorchStreamWriter|iostream error")
"""What is in the errors of `torch.save`, which do not tell the cause."""


def write_files(texts: Mapping[Path, str]) -> None:
    """Write several files of a folder; if any of them fails, all are as they were before."""
    first = next(iter(texts))
    folder = first.parent
    finish_writes(folder)
    with scratch(first) as draft, scratch(first) as old:
        for path, text in texts.items():
            (draft.parent / path.name).write_text(text, encoding="utf-8", newline="")
            if path.is_file():
                shutil.copy2(path, old.parent)
        complete = draft.parent.rename(draft.parent.with_suffix(COMPLETE))
        try:
            move_files(complete, folder)
        except OSError:
            for path in texts:
                if (before := old.parent / path.name).is_file():
                    before.replace(path)
                elif not (complete / path.name).exists():
                    path.unlink()
            shutil.rmtree(complete)
            raise


def finish_writes(folder: Path) -> None:
    """Move the files of writers that were killed after their files were complete."""
    for complete in folder.glob(f".*{COMPLETE}"):
        with suppress(PermissionError):  # a reader may not be allowed to write
            move_files(complete, folder)


def move_files(complete: Path, folder: Path) -> None:
    with suppress(FileNotFoundError):  # another process has finished this write
        for file in sorted(complete.iterdir()):
            file.replace(folder / file.name)
        complete.rmdir()


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """The path to write a file to; on leaving the block it replaces `path`."""
    with scratch(path) as draft:
        yield draft
        draft.replace(path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write into; on leaving the block it becomes `path`, which must not exist or be empty."""
    check_free(path)
    with scratch(path) as draft:
        draft.mkdir()
        yield draft
        check_free(path)
        draft.replace(path)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write into; on leaving the block it becomes `path`, and what was there is removed."""
    with scratch(path) as draft:
        draft.mkdir()
        yield draft
        replace_folder(path, draft)


def replace_folder(path: Path, new: Path) -> None:
    """Removes a folder, if it exists, and moves a new one to its place, if that exists."""
    with scratch(path) as old:
        if path.exists():
            path.replace(old)
        if new.exists():
            new.replace(path)


def check_free(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputExists(f"{path} already exists; choose another folder or remove it.")


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """A path of the same name in a new folder on the same file system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    with (
        name_in_errors(path),
        TemporaryDirectory(SUFFIX, f".{path.name}.", path.parent, ignore_cleanup_errors=True) as folder,
    ):
        yield Path(folder) / path.name


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Names the path in errors of writing: that of a full disk names no file, and a scratch folder means nothing to a
    reader."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and SUFFIX in str(error.filename or SUFFIX):
            error.filename = os.fspath(path)
        raise
    except SafetensorError as error:
        cause = re.search(r"\(os error (\d+)\)", str(error))  # no attribute has it
        if cause is None:
            raise
        code = int(cause[1])
        raise OSError(code, os.strerror(code), os.fspath(path)) from error
    except RuntimeError as error:
        if not TORCH_WRITER.search(str(error)):
            raise
        problem = "a file could not be written completely; is the disk full?"
        raise OSError(errno.EIO, problem, os.fspath(path)) from error


def remove_stale(path: Path) -> None:
    ours = re.compile(re.escape(f".{path.name}.") + r"\w+" + re.escape(SUFFIX))
    for folder in path.parent.iterdir():
        if ours.fullmatch(folder.name) and time.time() - last_change(folder) > STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def last_change(folder: Path) -> float:
    """The newest modification time in a folder; infinity while its writer removes it."""
    try:
        return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
    except FileNotFoundError:
        return float("inf")


def use_umask(file: Path) -> None:
    """Gives a file the permissions of any new file: those that safetensors writes are for their owner only."""
    probe = file.with_name(f".{file.name}.mode")
    probe.touch()
    file.chmod(stat.S_IMODE(probe.stat().st_mode))
    probe.unlink()


SCORES = "scores.json"
"""The scores of every exit of a trained model."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else in the file is a `CannotLoad`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CannotLoad(f"{path} cannot be read ({reason}); save or copy the model again.") from error
    if not isinstance(record, dict):
        raise CannotLoad(f"{path} cannot be read (not a JSON object); save or copy the model again.")
    return record


@contextmanager
def explain_damage(path: str | PathLike[str]) -> Iterator[None]:
    """`CannotLoad` for what a damaged file, or one that would run code, makes transformers or torch raise."""
    try:
        yield
    except OfframpError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise CannotLoad(
                f"{path} comes with Python code, which offramp never runs; remove auto_map from its JSON files, "
                "or use a model that needs no code of its own."
            ) from None
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise CannotLoad(f"{path}: {kind}{error}") from error


def digest(parts: Iterable[bytes]) -> str:
    """A short hash of the parts, joined.

    >>> digest([b"a", b"b"]) == digest([b"ab"])
    True
    """
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]
