"""Where a policy changes predictions, against counts made by hand and by loops."""

import numpy as np
import pytest

from offramp.measuring.changes import find_changes
from offramp.policy import Policy
from offramp.trace import Trace


@pytest.mark.parametrize(
    "problem", ["single_label_classification", "multi_label_classification", "regression"]
)
def test_every_grouping_covers_all_texts_and_all_changes(problem: str) -> None:
    draw = np.random.default_rng(0)
    outputs = 1 if problem == "regression" else 3
    trace = Trace(
        draw.normal(size=(400, 4, outputs)),
        (0, 1, 2, 3),
        None,
        draw.integers(1, 40, 400),
        np.arange(400),
        reference=draw.normal(size=(400, outputs)),
        reference_name="mine",
        problem=problem,  # type: ignore[arg-type]
    )
    decision = Policy.parse("layer:2").decide_trace(trace)
    exits = draw.integers(0, 4, 400)
    decision = type(decision)(exits, trace.logits[np.arange(400), exits], decision.finite)
    tolerance = 0.3 if problem == "regression" else None
    texts = [f"text {row}" for row in range(400)]
    found = find_changes(trace, decision, texts, tolerance)
    changed = ~trace.agrees(decision.logits, tolerance)
    for what, groups in found.groups.items():
        if what != "class" or problem == "single_label_classification":
            assert sum(group.rows for group in groups) == 400, what
            assert sum(group.different for group in groups) == changed.sum(), what
    for exit, group in enumerate(found.groups["exit"]):
        assert (group.name, group.different) == (f"layer {exit}", int(changed[exits == exit].sum()))
    assert ("sureness of the original" in found.groups) == (problem != "regression")
    assert len(found.examples) == min(100, changed.sum())
    for example, layer in zip(found.examples, found.layers, strict=True):
        assert changed[example.row]
        assert layer == exits[example.row]
        assert example.text == f"text {example.row}"
        assert example.old != example.new or problem == "regression"


def test_sureness_and_length_are_those_of_the_original() -> None:
    sure, unsure = [4.0, 0.0], [0.1, 0.0]  # probabilities of 0.98 and 0.52
    reference = np.array([sure, sure, unsure, unsure])
    logits = np.array([[sure], [sure], [unsure], [[0.0, 0.1]]])
    trace = Trace(
        logits, (1,), None, [3, 3, 50, 50], range(4), reference=reference, label_names=("no", "yes")
    )
    found = find_changes(trace, Policy.parse("never").decide_trace(trace), ["a", "b", "c", ("d", "e")])
    shown = {what: [tuple(vars(group).values()) for group in groups] for what, groups in found.groups.items()}
    assert shown["sureness of the original"] == [("below 60%", 2, 1), ("90 to below 99%", 2, 0)]
    assert shown["length"] == [("below 4 tokens", 2, 0), ("27 to below 51 tokens", 2, 1)]
    assert shown["class"] == [("no", 4, 1)]
    (example,) = found.examples
    assert (example.row, example.old, example.new, example.text) == (3, "no", "yes", "d | e")


def test_of_lists_the_documents_of_the_originals_top_k_are_counted() -> None:
    # two queries with three documents each; the top 1 of the second is lost
    reference = np.array([[3.0], [2], [1], [3], [2], [1]])
    logits = np.array([[[3.0]], [[2]], [[1]], [[0]], [[2]], [[1]]])
    trace = Trace(
        logits, (2,), None, np.ones(6, int), range(6), reference=reference, sizes=[3, 3], problem="regression"
    )
    texts = [(f"query {row // 3}", f"document {row}") for row in range(6)]
    found = find_changes(trace, Policy.parse("never").decide_trace(trace), texts, top_k=1)
    assert {
        what: sum(group.different for group in groups) for what, groups in found.groups.items()
    } == dict.fromkeys(["exit", "place", "length", "documents of the query"], 1)
    assert sum(group.rows for group in found.groups["place"]) == 2
    (example,) = found.examples
    assert (example.old, example.new, example.text) == ("place 1", "place 3", "query 1 | document 3")
