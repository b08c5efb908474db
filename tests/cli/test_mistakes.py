"""A mistake is explained in one line, has its exit code, and changes no file."""

import errno
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from offramp.inference import Classifier
from offramp.inference.runner import Runner
from offramp.models.exit_model import ExitModel

Run = Callable[..., Result]


def error_line(result: Result) -> str:
    """The only line of offramp on stderr."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("offramp: ")]
    assert len(lines) == 1, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return lines[0]


MISTAKES: dict[str, tuple[str, ...]] = {
    "info nowhere/at/all": ("nowhere/at/all", "no model found"),
    "info encoder": ("bert model without exits", "offramp train"),
    "train ./nowhere --train train.csv --out x": ("./nowhere", "no such folder"),
    "train encoder --train gone.csv --out x": ("gone.csv", "no such file"),
    "train encoder --train train.csv --label stars --out x": ("stars", "text, label"),
    "train encoder --out x": ("no data", "--task"),
    "train encoder --task mrpc --train train.csv --out x": ("not both", "--task"),
    "train encoder --task mrcp --out x": ("'mrcp'", "mrpc"),
    "train encoder --task mrpc --text-pair other --out x": ("--text-pair has no effect", "leave it out"),
    "train encoder --task mrpc --data . --unlabelled dev.csv --text text --out x": ("no files of mrpc",),
    "trace films --data dev.csv --problem regression --out x.trace": (
        "--problem has no effect",
        "single_label",
    ),
    "trace films --data dev.csv --labels yes,no --out x.trace": ("--labels has no effect", "no, yes"),
    "predict films --input-format xml": ("--input-format xml", "jsonl"),
    "train encoder --task mrpc --data . --out x": ("no files of mrpc", "train.tsv"),
    "train encoder --train train.csv --recipe pabe --out x": ("'pabe'", "pabee"),
    "train encoder --train train.csv --recipe romebert:gama=1 --out x": ("'gama'", "gamma"),
    "train encoder --train train.csv --recipe elasticbert:groups=two --out x": (
        "groups='two'",
        "whole number of 1 or more",
    ),
    "train encoder --train train.csv --metrics pearson --out x": ("pearson", "choose from mcc, acc"),
    "train encoder --train train.csv --epochs 0 --out x": ("--epochs 0", "above 0"),
    "train encoder --train train.csv --max-length 1 --out x": ("--max-length 1", "at least 5"),
    "train encoder --train empty-row.csv --out x": ("line 3", "--bad-rows drop"),
    "train encoder --train unnamed.csv --out x": ("which column is the text", "--text, one of first, second"),
    "train encoder --train train.csv --problem choice --out x": ("--problem choice", "regression"),
    "train encoder --train train.csv --early-stopping 0 --out x": (
        "--early-stopping 0",
        "1 evaluation or more",
    ),
    "trace films --data dev.csv --bad-rows keep --out x.trace": ("--bad-rows keep", "drop"),
    "train encoder --train train.csv --argument lr=1 --out x": ("'lr'", "TrainingArguments"),
    "train encoder --train train.csv --exits two --out x": ("--exits two", "2,4,6"),
    "train encoder --train train.csv --epochs 7 --out films": ("different run", "--epochs", "another folder"),
    "train films/model --train train.csv --exits 2 --out x": ("has exits", "--exits"),
    "train films --train train.csv --exits 2 --out x": ("has exits", "--exits"),
    "calibrate renamed dev.trace --max-loss 1": ("id2label=", "disagree"),
    "calibrate renumbered dev.trace --max-loss 1": ("id2label=", "does not name the outputs 0, 1"),
    "calibrate films dev.trace --guarantee no=0.5,ye=0.5": ("unknown class 'ye'", "yes"),
    "train films/model --train three.csv --recipe pabee --out x": ("needs 3 outputs", "the model has 2"),
    "train encoder --train train.csv --unlabelled gone.csv --out x": ("gone.csv", "no such file"),
    "train encoder --train train.csv --exits 0 --out x": ("--exits 0", "k from 1"),
    "train encoder --train header.csv --out x": ("header.csv", "no rows"),
    "predict films header.csv": ("header.csv", "no rows"),
    "train encoder --train train.csv --out train.csv": ("train.csv is a file", "folder"),
    "train encoder --train train.csv --out train.csv/x": ("train.csv", "not a folder"),
    "train encoder --train train.csv --device warp --out x": ("--device warp", "not available"),
    "train films/nope --train train.csv --out x": ("films/nope", "no such folder"),
    "predict films/nope dev.csv": ("films/nope", "no model found"),
    "predict no-such-model dev.csv": ("no-such-model is not a folder here", "downloaded"),
    "predict films dev.csv --out train.csv/x.csv": ("train.csv", "not a folder"),
    "import encoder --out films": ("films already exists; choose another --out.",),
    "export films --out films": ("films already exists; choose another --out.",),
    "train no-such-model --train train.csv --out x": (
        "no-such-model is not a folder here",
        "downloaded",
    ),
    "serve films --host no.such.host.invalid": ("--host no.such.host.invalid", "Name"),
    "bench films --data dev.csv --policy never": ("--policy never", "another policy"),
    "trace films --data other.csv --out x.trace": ("'maybe'", "no, yes"),
    "trace films --data dev.csv --out train.csv/x.trace": ("train.csv", "exist"),
    "curve gone.trace": ("gone.trace", "offramp trace"),
    "curve train.csv": ("train.csv", "not a complete trace file"),
    "curve dev.trace --rule entropi": ("'entropi'", "entropy"),
    "curve dev.trace --rule patience --thresholds some": ("'some'", "3,4,5"),
    "curve dev.trace --thresholds 1,2": ("--rule", "units"),
    "calibrate films dev.trace": ("exactly one", "--guarantee"),
    "calibrate films dev.trace --budget 2 --max-loss 1": ("got 2", "--budget"),
    "calibrate films --max-loss 1": ("needs a trace", "TRACE"),
    "calibrate films dev.trace --guarantee much": ("much", "0.02"),
    "calibrate films dev.trace --guarantee 2": ("--guarantee 2", "between 0 and 1"),
    "calibrate films dev.trace --max-loss -1": ("--max-loss -1", "0 or more"),
    "calibrate films dev.trace --min-speedup 0.5": ("--min-speedup 0.5", "1 (full depth) or more"),
    "calibrate films dev.trace --budget 0": ("--budget 0", "more than 0"),
    "calibrate films --policy layer:9": ("layer=9", "1, 2, 3, 4"),
    "calibrate films --policy gate:0.5": ("no gate", "berxit"),
    "calibrate films --policy agreement:0.9": ("not fitted", "calibrate"),
    "calibrate regression --policy entropy:0.3": ("predicts a number", "patience"),
    "calibrate other dev.trace --max-loss 1": ("other weights", "offramp trace"),
    "predict films gone.txt": ("gone.txt", "no such file"),
    "predict films dev.csv --policy entropi:1": ("'entropi'", "entropy"),
    "predict films dev.csv --max-layer 9": ("9", "1, 2, 3, 4"),
    "predict films dev.csv --out predictions.xls": ("predictions.xls", ".jsonl"),
    "predict films dev.csv --out dev.csv --force": ("dev.csv is also an input", "--out"),
    "predict films dev.csv --out train.csv": ("train.csv already exists", "--force"),
    "predict films dev.csv --data train.csv": ("--data", "--submission"),
    "predict films gap.jsonl": ("gap.jsonl, line 2", "no text"),
    "predict films dev.csv --device warp": ("--device warp", "cannot be used"),
    "trace films --data dev.csv --out dev.trace": ("dev.trace already exists", "--force"),
    "trace films --data dev.csv --out dev.csv": ("dev.csv is also an input", "--out"),
    "curve dev.trace --out films": ("films already exists", "--force"),
    "predict films --submission glue": ("--task", "--out"),
    "predict films latin.txt": ("latin.txt", "UTF-8"),
    "bench films --data dev.csv": ("no stored policy", "--policy"),
    "import encoder --out x": ("plain transformers model", "offramp train"),
    "list rule": ("'rule'", "rules"),
}


PYTHON = re.compile(
    r"=\.\.\.|\b(bad_rows|early_stopping|max_length|num_labels|num_train_epochs|output_dir|problem_type)\b"
)
"""Python arguments, which are not flags."""


@pytest.fixture(scope="module")
def workshop(
    trained: Path, make_model: Callable[..., ExitModel], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The files that the mistakes are made with; none of them changes it."""
    place = Path(shutil.copytree(trained, tmp_path_factory.mktemp("mistakes") / "workshop"))
    (place / "other.csv").write_text("text,label\na film,maybe\n")
    (place / "empty-row.csv").write_text("text,label\na film,yes\n,no\n")
    (place / "three.csv").write_text("text,label\na film,no\na film,yes\na film,maybe\n")
    (place / "unnamed.csv").write_text("first,second\na film,yes\n")
    (place / "header.csv").write_text("text,label\n")
    (place / "gap.jsonl").write_text('{"text": "a film"}\n{"txt": "a film"}\n')
    (place / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    make_model(num_labels=1).save_pretrained(place / "regression")
    shutil.copytree(place / "films/model", place / "other")
    mappings: dict[str, Any] = {
        "renamed": {"label2id": {"no": 0, "yse": 1}},
        "renumbered": {"id2label": {"0": "no", "2": "yes"}},
    }
    for name, mapping in mappings.items():
        config = Path(shutil.copytree(place / "films/model", place / name)) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | mapping))
    weights = place / "other/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # one bit of the last weight
    weights.write_bytes(bytes(data))
    return place


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_explained_in_one_line_that_names_flags(
    workshop: Path, monkeypatch: pytest.MonkeyPatch, run: Run, line: str
) -> None:
    monkeypatch.chdir(workshop)
    before = files_in(workshop)
    result = run(*line.split())
    assert result.exit_code == 1
    message = error_line(result)
    assert all(part in message for part in MISTAKES[line]), message
    assert not PYTHON.search(message), message
    assert files_in(workshop) == before


def files_in(folder: Path) -> dict[str, float]:
    return {str(file): file.stat().st_mtime for file in folder.rglob("*") if file.is_file()}


def test_no_safe_threshold_has_its_own_code_and_stores_nothing(home: Path, run: Run) -> None:
    before = files_in(home)
    result = run("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.001)
    assert result.exit_code == 3
    assert "cannot prove changed of at most 0.001" in error_line(result)
    assert files_in(home) == before


@pytest.mark.parametrize(
    ("line", "hint"),
    {
        "train encoder --epoch 2 --out x": "--epochs",
        "predict films --polcy never": "--policy",
        "trian encoder": "'train'",
        "bench films --data dev.csv --threads 0": "greater than or equal to 1",
    }.items(),
)
def test_a_mistyped_flag_or_command_gets_a_suggestion(run: Run, line: str, hint: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert hint in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("line", ["train", "info", "curve x --bootstrap many", "nonsense", "info x --colour"])
def test_a_usage_error_has_code_2(run: Run, line: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_debug_shows_the_traceback(run: Run) -> None:
    result = run("info", "nowhere/at/all", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_an_unexpected_error_is_one_line_too(
    trained: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(Runner, "from_pretrained", raises(RuntimeError("of a\nlibrary")))
    result = run("predict", trained / "films", trained / "dev.csv")
    assert result.exit_code == 1
    assert "RuntimeError: of a library" in error_line(result)


def test_a_missing_extra_gives_the_command_to_type(
    trained: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    missing = ModuleNotFoundError("No module named 'torch'", name="torch")
    monkeypatch.setattr(Runner, "from_pretrained", raises(missing))
    result = run("predict", trained / "films", trained / "dev.csv")
    assert result.exit_code == 1
    assert "needs torch: pip install 'offramp[train]', or in a checkout: pip install -c" in error_line(result)


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fault", "code"), [(KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, "No space"), 1)]
)
def test_an_interrupted_prediction_keeps_the_earlier_output(
    home: Path, monkeypatch: pytest.MonkeyPatch, run: Run, fault: BaseException, code: int
) -> None:
    predict = Classifier.predict

    def breaks_off(self: Classifier, texts: Any, **options: Any) -> Iterator[Any]:
        found = predict(self, texts, **options)
        yield next(found)  # type: ignore[call-overload]
        raise fault

    (home / "answers.csv").write_text("of yesterday")
    before = files_in(home)
    monkeypatch.setattr(Classifier, "predict", breaks_off)
    result = run("predict", home / "films", home / "dev.csv", "--out", home / "answers.csv", "--force")
    assert result.exit_code == code
    assert error_line(result)
    assert files_in(home) == before


def test_a_full_disk_changes_neither_model_nor_card(
    home: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    before = files_in(home)
    write = Path.write_text

    def full(self: Path, *arguments: Any, **options: Any) -> int:
        if "README" in self.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    result = run("calibrate", home / "films", "--policy", "entropy:0.1")
    assert result.exit_code == 1
    assert "No space left on device" in error_line(result)
    assert files_in(home) == before


def test_a_closed_pipe_is_not_an_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from offramp.cli import main; main()", "list", "rules"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
    process.stderr.close()
