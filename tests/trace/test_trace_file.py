"""A trace as a record and as a file."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from offramp.errors import BadData
from offramp.trace import Trace, record

SIZES = {"hidden": 16, "intermediate": 32, "heads": 2, "layers": 6}


def trace(examples: int = 5, **changes: Any) -> Trace:
    random = np.random.default_rng(0)
    parts = {
        "logits": random.normal(size=(examples, 3, 2)).astype(np.float32),
        "layers": (2, 4, 6),
        "labels": random.integers(0, 2, examples),
        "lengths": random.integers(1, 9, examples),
        "ids": np.arange(examples),
        "gates": random.random((examples, 3)).astype(np.float32),
        "label_names": ("ham", "spam"),
        "metrics": ("accuracy", "f1"),
        "fingerprint": "abc",
        "data": "spam, validation",
        "runtime": "torch",
        "shape": SIZES,
    }
    return Trace(**parts | changes)  # type: ignore[arg-type]


def same(one: Trace, other: Trace) -> None:
    for each in fields(Trace):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine == theirs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"labels": None, "gates": None},
        {"ids": np.array(["a", "bß", ""] + ["c" * 99] * 2)},
        {"labels": np.eye(5, 2, dtype=int), "problem_type": "multi_label_classification"},
        {
            "logits": np.full((5, 3, 1), np.nan, np.float32),
            "labels": np.linspace(0, 5, 5),
            "label_names": (),
            "problem_type": "regression",
        },
        {"shape": {}, "metrics": (), "data": ""},
    ],
)
def test_a_saved_trace_loads_as_it_was(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = trace(**changes)
    made.save(tmp_path / "new folder" / "made.trace")
    same(Trace.load(tmp_path / "new folder" / "made.trace"), made)


def test_rows_are_kept_in_all_arrays() -> None:
    made = trace()
    for rows in (slice(1, 3), np.array([4, 0]), made.labels == 1):
        kept = made[rows]
        for name in record.PER_EXAMPLE:
            np.testing.assert_array_equal(getattr(kept, name), getattr(made, name)[rows])
        assert kept.layers == made.layers


def test_saving_replaces_a_trace_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "made.trace"
    first = trace(5)
    first.save(path)

    def breaks_off(arrays: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(record, "save_file", breaks_off)
    with pytest.raises(OSError, match="no space left"):
        trace(9).save(path)
    same(Trace.load(path), first)
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_whole_trace_are_named(tmp_path: Path) -> None:
    path = tmp_path / "made.trace"
    with pytest.raises(BadData, match="no trace at"):
        Trace.load(path)
    path.write_text("hello")
    with pytest.raises(BadData, match="collect it again"):
        Trace.load(path)
    trace().save(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadData, match="only a part"):
        Trace.load(path)
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(BadData, match="but no trace"):
        Trace.load(path)
    save_file({"logits": np.zeros(3)}, path, {"offramp_trace": "2", "fields": "{}"})
    with pytest.raises(BadData, match="newer offramp"):
        Trace.load(path)
    with pytest.raises(BadData):
        Trace.load(tmp_path)


def written(**changes: Any) -> str:
    made = {"text_ids": False, "layers": [1, 2], "problem_type": "single_label_classification"}
    return json.dumps(made | changes)


WHOLE = {"logits": np.zeros((2, 2, 3), np.float32), "lengths": np.ones(2), "ids": np.arange(2)}


@pytest.mark.parametrize(
    ("arrays", "metadata", "message"),
    [
        (WHOLE, {"offramp_trace": "one", "fields": written()}, "is no trace"),
        (WHOLE, {"offramp_trace": "1"}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": "{half"}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": "[1]"}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": "{}"}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": written(text_ids=True)}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": written(layers=["a", "b"])}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": written(layers=None)}, "is no trace"),
        (WHOLE, {"offramp_trace": "1", "fields": written(shape=3)}, "is no trace"),
        (
            WHOLE,
            {"offramp_trace": "1", "fields": written(newer=1)},
            "newer, which this offramp does not know",
        ),
        (WHOLE | {"hidden": np.ones(2)}, {"offramp_trace": "1", "fields": written()}, "hidden, which"),
        ({"logits": WHOLE["logits"]}, {"offramp_trace": "1", "fields": written()}, "is no trace"),
        (WHOLE | {"lengths": np.ones(3)}, {"offramp_trace": "1", "fields": written()}, "lengths must be"),
    ],
)
def test_foreign_newer_and_damaged_files_are_refused(
    arrays: dict[str, Any], metadata: dict[str, str], message: str, tmp_path: Path
) -> None:
    save_file(arrays, tmp_path / "made.trace", metadata)
    with pytest.raises(BadData, match=message):
        Trace.load(tmp_path / "made.trace")
    save_file(WHOLE, tmp_path / "whole.trace", {"offramp_trace": "1", "fields": written()})
    assert len(Trace.load(tmp_path / "whole.trace")) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": np.zeros((5, 3))}, r"\(examples, exits, classes\)"),
        ({"layers": (2, 4)}, "layers must be of shape"),
        ({"layers": (4, 2, 6)}, "must rise"),
        ({"layers": (0, 2, 6)}, "count from 1"),
        ({"labels": np.zeros(4, int)}, "labels must be of shape"),
        ({"labels": np.full(5, -1)}, "labels=None"),
        ({"labels": np.full(5, 2)}, "labels must be 0 to 1"),
        ({"lengths": np.zeros((5, 1))}, "lengths must be of shape"),
        ({"ids": np.zeros(6)}, "ids must be of shape"),
        ({"gates": np.zeros((5, 2))}, "gates must be of shape"),
        ({"label_names": ("spam",)}, "label_names must be of shape"),
        ({"problem_type": "ranking"}, "is none of"),
        ({"problem_type": "regression"}, "one output"),
        ({"problem_type": "multi_label_classification"}, r"labels must be of shape \(5, 2\)"),
        ({"shape": {"hidden": 16}}, "hidden, intermediate, heads, layers"),
    ],
)
def test_parts_that_do_not_fit_together_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        trace(**changes)
