from pathlib import Path

import numpy as np
import pytest

from offramp.data import TASKS
from offramp.data.submission import write_submission
from offramp.errors import BadData


@pytest.mark.parametrize(
    ("name", "file", "predictions", "written"),
    [
        ("cola", "CoLA.tsv", [1, 0], ["1", "0"]),
        ("sst-2", "SST-2.tsv", [1, 0], ["1", "0"]),
        ("mrpc", "MRPC.tsv", [1, 0], ["1", "0"]),
        ("sts-b", "STS-B.tsv", [5.25, -0.5], ["5.0", "0.0"]),
        ("qqp", "QQP.tsv", [1, 0], ["1", "0"]),
        ("mnli", "MNLI-m.tsv", [0, 1], ["contradiction", "entailment"]),
        ("mnli-mm", "MNLI-mm.tsv", [1, 2], ["entailment", "neutral"]),
        ("qnli", "QNLI.tsv", [1, 0], ["not_entailment", "entailment"]),
        ("rte", "RTE.tsv", [1, 0], ["not_entailment", "entailment"]),
        ("wnli", "WNLI.tsv", [1, 0], ["1", "0"]),
        ("ax", "AX.tsv", [2, 0], ["neutral", "contradiction"]),
        ("elue/sst-2", "sst-2.tsv", [1, 0], ["1", "0"]),
        ("elue/imdb", "imdb.tsv", [1, 0], ["1", "0"]),
        ("elue/mrpc", "mrpc.tsv", [1, 0], ["1", "0"]),
        ("elue/sts-b", "sts-b.tsv", [2.5, 3.125], ["2.5", "3.125"]),
        ("elue/snli", "snli.tsv", [2, 0], ["2", "0"]),
        ("elue/scitail", "scitail.tsv", [1, 0], ["1", "0"]),
    ],
)
def test_predictions_are_written_in_the_format_of_the_benchmark(
    name: str, file: str, predictions: list[float], written: list[str], tmp_path: Path
) -> None:
    paths = write_submission(TASKS[name], np.array([4, 9]), np.array(predictions), tmp_path / "new")
    assert paths == [tmp_path / "new" / file]
    assert paths[0].read_text() == f"index\tprediction\n4\t{written[0]}\n9\t{written[1]}\n"


@pytest.mark.parametrize("name", ["mnli", "mnli-mm", "ax"])
def test_entailment_and_neutral_are_not_swapped_for_a_model_with_another_order(
    name: str, tmp_path: Path
) -> None:
    model_order = ("contradiction", "neutral", "entailment")
    task = TASKS[name].with_label_order(model_order, "bert")
    (path,) = write_submission(task, [0, 1, 2], [0, 1, 2], tmp_path)
    assert [line.split("\t")[1] for line in path.read_text().splitlines()[1:]] == list(model_order)


def test_layers_are_written_beside_the_predictions(tmp_path: Path) -> None:
    paths = write_submission(TASKS["elue/snli"], [0, 1], [2, 1], tmp_path, layers=[3, 12])
    assert [path.name for path in paths] == ["snli.tsv", "snli_exit_layer.tsv"]
    assert paths[1].read_text() == "index\texit_layer\n0\t3\n1\t12\n"


@pytest.mark.parametrize(
    ("idx", "predictions", "layers", "problem"),
    [
        ([0, 1], [2], None, r"column lengths \[1\], expected 2"),
        ([0, 1], [2, 1], [4], r"column lengths \[2, 1\], expected 2"),
        ([1, 1], [2, 1], None, r"an index occurs twice"),
        ([0, 1], [2, 3], None, r"prediction 3, expected the index of a label, 0 to 2"),
    ],
)
def test_invalid_predictions_leave_no_file_behind(
    idx: list[int], predictions: list[int], layers: list[int] | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=problem):
        write_submission(TASKS["elue/snli"], idx, predictions, tmp_path, layers=layers)
    assert not list(tmp_path.iterdir())


def test_labels_of_another_task_are_refused() -> None:
    with pytest.raises(BadData, match="the labels do not match"):
        TASKS["mnli"].with_label_order(["entailment", "not_entailment"], "bert")


def test_a_score_that_is_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="has the training diverged"):
        write_submission(TASKS["sts-b"], [0], [float("nan")], tmp_path)


def test_a_task_without_submissions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="ag is not part of a benchmark that accepts submissions"):
        write_submission(TASKS["ag"], [0], [0], tmp_path)


def test_a_failure_while_writing_leaves_the_old_files_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_submission(TASKS["mrpc"], [0], [1], tmp_path)
    before = path.read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        write_submission(TASKS["mrpc"], [0], [0], tmp_path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
