"""Trace: its checks, and its file."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from offramp import trace as trace_module
from offramp.errors import BadData, UnknownName
from offramp.trace import PER_EXAMPLE, PER_PART, Trace

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
        {"labels": np.eye(5, 2, dtype=int), "problem": "multi_label_classification"},
        {
            "logits": np.full((5, 3, 1), np.nan, np.float32),
            "labels": np.linspace(0, 5, 5),
            "label_names": (),
            "problem": "regression",
        },
        {"shape": {}, "metrics": (), "data": ""},
        {"layers": (0, 1, 2)},
        {"sizes": np.array([2, 3])},
    ],
)
def test_a_saved_trace_loads_unchanged(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = trace(**changes)
    made.save(tmp_path / "new folder" / "made.trace")
    same(Trace.load(tmp_path / "new folder" / "made.trace"), made)


def test_indexing_selects_rows_of_all_arrays() -> None:
    rows = np.arange(5)
    made = trace(
        reference=np.arange(10.0).reshape(5, 2), trained_on=rows > 2, texts=rows, categories=rows % 2
    )
    for rows in (slice(1, 3), np.array([4, 0]), made.labels == 1):
        kept = made[rows]
        for name in {*PER_PART, *PER_EXAMPLE} - {"counts", "words", "continues"}:
            np.testing.assert_array_equal(getattr(kept, name), getattr(made, name)[rows])
        assert kept.layers == made.layers


def test_indexing_a_trace_of_lists_selects_lists_with_their_rows() -> None:
    made = trace(6, sizes=[2, 1, 3])
    assert len(made) == 3
    for examples, rows in ((slice(1, 3), [2, 3, 4, 5]), (np.array([2, 0]), [3, 4, 5, 0, 1]), (slice(0), [])):
        kept = made[examples]
        assert kept.ids.tolist() == rows
        assert len(kept) == len(kept.sizes)
    assert made[np.array([True, False, True])].sizes.tolist() == [2, 3]


def test_rows_are_grouped_by_their_query_in_the_order_of_its_first_row() -> None:
    grouped = trace(6).grouped(["b", "a", "b", "c", "a", "b"])
    assert grouped.ids.tolist() == [0, 2, 5, 1, 4, 3]
    assert grouped.sizes.tolist() == [3, 2, 1]
    with pytest.raises(BadData, match="2 queries for 6 rows"):
        trace(6).grouped(["a", "b"])


@pytest.mark.parametrize("sizes", [[2, 2], [5, 0], [6, -1]])
def test_sizes_that_do_not_add_up_are_refused(sizes: list[int]) -> None:
    with pytest.raises(BadData, match="add up to 5 rows"):
        trace(5, sizes=sizes)


def test_saving_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "made.trace"
    first = trace(5)
    first.save(path)

    def fail_halfway(arrays: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(trace_module, "save_file", fail_halfway)
    with pytest.raises(OSError, match="no space left"):
        trace(9).save(path)
    same(Trace.load(path), first)
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_not_traces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.trace"
    with pytest.raises(BadData, match="does not exist"):
        Trace.load(path)
    path.write_text("hello")
    with pytest.raises(BadData, match="not a complete trace file"):
        Trace.load(path)
    trace().save(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadData, match="not a complete trace file"):
        Trace.load(path)
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(BadData, match="but not a trace"):
        Trace.load(path)
    save_file({"logits": np.zeros(3)}, path, {"offramp_trace": "2", "fields": "{}"})
    with pytest.raises(BadData, match="newer offramp"):
        Trace.load(path)
    with pytest.raises(BadData):
        Trace.load(tmp_path)


def metadata(**changes: Any) -> dict[str, str]:
    fields = {"text_ids": False, "layers": [1, 2], "problem": "single_label_classification"}
    return {"offramp_trace": "1", "fields": json.dumps(fields | changes)}


WHOLE = {"logits": np.zeros((2, 2, 3), np.float32), "lengths": np.ones(2), "ids": np.arange(2)}


@pytest.mark.parametrize(
    ("arrays", "saved", "message"),
    [
        (WHOLE, metadata() | {"offramp_trace": "one"}, "not a complete trace file"),
        (WHOLE, {"offramp_trace": "1"}, "not a complete trace file"),
        (WHOLE, {"offramp_trace": "1", "fields": "{half"}, "not a complete trace file"),
        (WHOLE, {"offramp_trace": "1", "fields": "[1]"}, "not a complete trace file"),
        (WHOLE, {"offramp_trace": "1", "fields": "{}"}, "not a complete trace file"),
        (
            WHOLE,
            metadata(text_ids=True),
            "not a complete trace file",
        ),
        (
            WHOLE,
            metadata(layers=["a", "b"]),
            "not a complete trace file",
        ),
        (WHOLE, metadata(layers=None), "not a complete trace file"),
        (WHOLE, metadata(shape=3), "not a complete trace file"),
        (WHOLE, metadata(newer=1), "unknown fields newer"),
        (
            WHOLE | {"hidden": np.ones(2)},
            metadata(),
            "unknown fields hidden",
        ),
        (
            {"logits": WHOLE["logits"]},
            metadata(),
            "not a complete trace file",
        ),
        (
            WHOLE | {"lengths": np.ones(3)},
            metadata(),
            "lengths must have",
        ),
    ],
)
def test_newer_and_damaged_files_are_refused(
    arrays: dict[str, Any], saved: dict[str, str], message: str, tmp_path: Path
) -> None:
    save_file(arrays, tmp_path / "made.trace", saved)
    with pytest.raises(BadData, match=message):
        Trace.load(tmp_path / "made.trace")
    save_file(WHOLE, tmp_path / "whole.trace", metadata())
    assert len(Trace.load(tmp_path / "whole.trace")) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": np.zeros((5, 3))}, r"\(examples, exits, classes\)"),
        ({"layers": (2, 4)}, "layers must have shape"),
        ({"layers": (4, 2, 6)}, "must increase"),
        ({"layers": (-1, 2, 6)}, "must not be negative"),
        ({"labels": np.zeros(4, int)}, "labels must have shape"),
        ({"labels": np.full(5, -1)}, "labels=None"),
        ({"labels": np.full(5, 2)}, "labels must be 0 to 1"),
        ({"lengths": np.zeros((5, 1))}, "lengths must have shape"),
        ({"ids": np.zeros(6)}, "ids must have shape"),
        ({"gates": np.zeros((5, 2))}, "gates must have shape"),
        ({"label_names": ("spam",)}, "label_names must have shape"),
        ({"problem": "regression"}, "one output"),
        ({"problem": "multi_label_classification"}, r"labels must have shape \(5, 2\)"),
        ({"shape": {"hidden": 16}}, "hidden, intermediate, heads, layers"),
    ],
)
def test_inconsistent_fields_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        trace(**changes)


def test_an_unknown_problem_is_refused() -> None:
    with pytest.raises(UnknownName, match="'ranking' is not one of"):
        trace(problem="ranking")
