"""Loading an exported folder: damage is named, and threads are counted on every platform."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offramp.errors import BadOption, CannotLoad
from offramp.runtimes.onnx import OnnxRuntime, session_options


def change_manifest(folder: Path, **changes: Any) -> None:
    file = folder / "stages.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "stages.onnx").unlink(), "stages.onnx is missing"),
        (
            lambda folder: (folder / "stages.onnx").write_bytes(b"?"),
            "stages.onnx is not the file that was",
        ),
        (lambda folder: (folder / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda folder: (folder / "stages.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "stages.json").write_text("{}"), "has no branches"),
        (lambda folder: change_manifest(folder, format=99), "upgrade offramp"),
    ],
)
def test_a_damaged_folder_is_refused(
    exported: Path, tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    damage(copy)
    with pytest.raises(CannotLoad, match=reason):
        OnnxRuntime(copy)


def test_threads_must_be_positive() -> None:
    with pytest.raises(BadOption, match="at least 1"):
        session_options(threads=0)


def test_threads_default_to_the_available_cpus_on_every_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    # macOS and Windows before Python 3.13 have neither
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert session_options(None).intra_op_num_threads == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert session_options(None).intra_op_num_threads == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert session_options(None).intra_op_num_threads == 2
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
    assert session_options(None).intra_op_num_threads == 5
