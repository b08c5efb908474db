import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from offramp.errors import OutputExists
from offramp.files import atomic_file, atomic_folder, finish_writes, name_in_errors, write_files
from offramp.models.exit_model import ExitModel
from offramp.trace import Trace

UNWRITABLE = "a lone surrogate \ud800"


def test_if_one_of_several_files_cannot_be_written_none_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_files({old: "after", new: UNWRITABLE})
    assert old.read_text() == "before"
    assert [*tmp_path.iterdir()] == [old]


def test_if_one_of_several_files_cannot_be_replaced_the_others_are_restored(tmp_path: Path) -> None:
    old, new, folder = tmp_path / "old.txt", tmp_path / "new.txt", tmp_path / "folder"
    old.write_text("before")
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        write_files({old: "after", new: "after", folder: "after"})
    assert old.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [folder, old]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_writer_killed_between_two_files_leaves_neither_or_both_to_the_next_reader(
    tmp_path: Path, moved: int
) -> None:
    code = f"""
import os, pathlib
from offramp.files import write_files
replace, moves = pathlib.Path.replace, iter(range({moved}))
def replace_or_die(self, target):
    if next(moves, None) is None:
        os._exit(9)
    return replace(self, target)
pathlib.Path.replace = replace_or_die
write_files({{pathlib.Path({str(tmp_path)!r}, name): "after" for name in ("one", "two", "three")}})
"""
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text("before")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    finish_writes(tmp_path)
    assert {(tmp_path / name).read_text() for name in ("one", "two", "three")} == {"after"}


def test_a_file_is_unchanged_when_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "kept.txt"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError), atomic_file(file) as half:
        half.write_text(UNWRITABLE)
    assert file.read_text() == "before"
    assert [*tmp_path.iterdir()] == [file]


def test_a_folder_is_complete_or_absent(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError), atomic_folder(tmp_path / "in" / "half") as half:
        (half / "one").write_text(UNWRITABLE)
    with atomic_folder(tmp_path / "in" / "whole") as half:
        (half / "one").write_text("1")
        assert not (tmp_path / "in" / "whole").exists()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "in",
        "in/whole",
        "in/whole/one",
    ]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_existing_output_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    precious = out if kind == "file" else out / "notes.txt"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("keep me")
    with pytest.raises(OutputExists, match=r"out already exists"), atomic_folder(out):
        raise AssertionError("the body must not run")
    assert precious.read_text() == "keep me"
    assert [*tmp_path.iterdir()] == [out]


def test_writers_of_the_same_target_in_one_process_do_not_collide(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OutputExists), atomic_folder(out), atomic_folder(out) as second:
        (second / "by").write_text("second")
    assert (out / "by").read_text() == "second"
    with atomic_file(tmp_path / "file") as one, atomic_file(tmp_path / "file") as two:
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "file").read_text() == "one"  # the last to finish
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


def test_a_killed_writer_does_not_block_its_retry_even_under_the_same_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)  # as in a container, where every run gets the same one
    code = f"""
import os, pathlib
os.getpid = lambda: 7
from offramp.files import atomic_folder
with atomic_folder(pathlib.Path({str(tmp_path / "out")!r})) as half:
    (half / "one").write_text("half")
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    (leftover,) = tmp_path.iterdir()
    with atomic_folder(tmp_path / "out") as half:
        (half / "one").write_text("whole")
    assert (tmp_path / "out" / "one").read_text() == "whole"
    assert leftover.exists()  # it could belong to a slow writer; see the next test


def test_leftovers_of_the_same_target_are_removed_once_untouched_for_an_hour(tmp_path: Path) -> None:
    def leave(target: str, hours: float) -> Path:
        folder = tmp_path / f".{target}.k1ll3d.unfinished"
        file = folder / target
        folder.mkdir()
        file.write_text("half")
        for path in (file, folder):
            os.utime(path, (time.time() - hours * 3600,) * 2)
        return folder

    dead, other = leave("file", hours=2), leave("file.json", hours=2)
    write_files({tmp_path / "file": "whole"})
    assert not dead.exists()
    assert other.exists()  # left by a writer of file.json
    slow = leave("file", hours=2)
    (slow / "file").write_text("still writing")
    os.utime(slow, (time.time() - 7200,) * 2)
    write_files({tmp_path / "file": "whole"})
    assert slow.exists()


def test_files_and_folders_get_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "plain-folder").mkdir()
    write_files({tmp_path / "file": ""})
    with atomic_folder(tmp_path / "folder"):
        pass
    for usual, written in (("plain", "file"), ("plain-folder", "folder")):
        assert (tmp_path / usual).stat().st_mode == (tmp_path / written).stat().st_mode


def test_an_error_without_a_path_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, atomic_file(tmp_path / "model.csv"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "model.csv")


def test_an_error_of_safetensors_names_the_file_that_was_to_be_written(
    make_trace: Callable[..., Trace], tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            make_trace(3000).save(tmp_path / "x.trace")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "x.trace")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_errors_of_torch_and_safetensors_on_a_full_disk_name_the_place(tmp_path: Path) -> None:
    rows = {"a": torch.zeros(9)}
    with pytest.raises(OSError, match="is the disk full") as of_torch, name_in_errors(tmp_path):
        torch.save(rows, "/dev/full")
    with pytest.raises(OSError, match="No space left") as of_system, name_in_errors(tmp_path):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert of_torch.value.filename == of_system.value.filename == str(tmp_path)


def test_weights_and_traces_have_the_permissions_of_other_files(
    make_model: Callable[..., ExitModel], make_trace: Callable[..., Trace], tmp_path: Path
) -> None:
    before = os.umask(0o027)
    try:
        make_model().save_pretrained(tmp_path)
        make_trace(3).save(tmp_path / "x.trace")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o640"}
