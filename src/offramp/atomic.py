"""Write files and folders completely or not at all.

Output is written to a scratch folder beside its target, `.NAME.RANDOM.unfinished`, and then renamed. A killed writer
leaves its scratch folder behind; the next writer of the same target removes it once nothing in it has changed for an
hour, so that a slow writer that is still running is left alone.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from offramp.errors import OutputExists

SUFFIX = ".unfinished"
STALE_SECONDS = 3600


def write_files(texts: Mapping[Path, str]) -> None:
    """Write several files; if any of them fails, all are as they were before.

    Each file is replaced in one step, but a process killed between two of these steps leaves some of them old.
    """
    with ExitStack() as stack:
        drafts = {path: stack.enter_context(scratch(path)) for path in texts}
        for path, draft in drafts.items():
            draft.write_text(texts[path], encoding="utf-8", newline="")
        undo = stack.enter_context(ExitStack())
        for path, draft in drafts.items():
            before = shutil.copy2(path, f"{draft}.before") if path.is_file() else None
            draft.replace(path)
            if before:
                undo.callback(os.replace, before, path)
            else:
                undo.callback(path.unlink)
        undo.pop_all()


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


def check_free(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputExists(f"{path} already exists; choose another folder or remove it.")


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """A path of the same name in a new folder on the same file system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    with TemporaryDirectory(SUFFIX, f".{path.name}.", path.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / path.name


def remove_stale(path: Path) -> None:
    ours = re.compile(re.escape(f".{path.name}.") + r"\w+" + re.escape(SUFFIX))
    for folder in path.parent.iterdir():
        if ours.fullmatch(folder.name) and time.time() - last_change(folder) > STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def last_change(folder: Path) -> float:
    """The newest modification time in a folder; infinity while its writer is just removing it."""
    try:
        return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
    except FileNotFoundError:
        return float("inf")
